"""The queue as looks show it keeps the rules of queue models."""

from __future__ import annotations

from bftrainer.queue.lsf import LsfQueue
from bftrainer.queue.printed import PrintedQueue
from tests.conformance.queue_model import QueueModelConformance


class TestPrintedQueue(QueueModelConformance):
    model = PrintedQueue


class TestLsfQueue(QueueModelConformance):
    model = LsfQueue
