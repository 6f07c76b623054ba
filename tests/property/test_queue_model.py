"""The queue as looks show it keeps the rules of queue models."""

from __future__ import annotations

from bftrainer.decide.queue.models import LsfQueue, PrintedQueue
from tests.conformance.queue_model import QueueModelConformance


class TestPrintedQueue(QueueModelConformance):
    model = PrintedQueue


class TestLsfQueue(QueueModelConformance):
    model = LsfQueue
