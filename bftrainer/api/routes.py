"""The routes of the API: requests in, documents (``documents``) out.

Serves a ``Service`` under /v1, and /metrics for Prometheus. The service is called in the daemon's
event loop, which nothing else here may block: a background thread parses and writes large texts,
users' files are read outside the loop, and one user's requests are served one by one, so that
another user waits for one of them at most.

A file system that hangs blocks its readers for ever. So each call that reads a user's files runs in
a thread of its own that is never joined, and counts for that user (``Aside``). A user with too many
calls under way is refused at once; other users are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bftrainer.api.checkpoint_place import (
    TakenError,
    check_place,
    check_places,
    check_real,
    check_reals,
    resolve_directory,
)
from bftrainer.api.documents import CodecError, check_schema, document, listing, parse
from bftrainer.api.http_messages import (
    HANDLERS,
    as_json,
    asked_of,
    body_of,
    credentials_of,
    read_change,
    read_limit,
    read_seen,
    read_submission,
    read_trials,
    read_wait,
    since_s_of,
    trainer_id_of,
)
from bftrainer.api.privacy import Sight, check_own, check_submitter, for_peer, is_trusted
from bftrainer.api.service import Peer, Service, user_name
from bftrainer.fleet.background import in_thread, ready_threads
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import Explanation, NodeView, TrainerView
from bftrainer.site.policy.keys import Visibility

T = TypeVar("T")

LIMIT_S = 2.0
MOST_PER_USER = 4
MOST = 64
MOST_NAMES = 10_000
NEWS_LIMIT_S = 10.0  # how long a request waits for news
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format


class NoAnswerError(BftError):
    """BFT-1033: the file system did not answer, or too many calls for the user hang."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            "BFT-1033",
            f"{what} cannot be read: {why}.",
            "Check it with ls; try again, or name a directory on another file system.",
            exit_code=ExitCode.TIMEOUT,
        )


class Aside:
    """The threads of one event loop."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._running: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def call(self, user: str, what: str, work: Callable[[], T]) -> T:
        """Return the result of ``work``, or raise its exception.

        No second thread is started for the same user and object, because the first may hang.

        Raises:
            NoAnswerError: it did not return in time, or too many others did not.
        """
        key = (user, what)
        while key in self._running:
            await self._outcome(what, self._running[key])
        n_running = sum(1 for owner, _ in self._running if owner == user)
        if n_running >= MOST_PER_USER or len(self._running) >= MOST:
            raise NoAnswerError(what, f"{n_running} earlier calls for {user} have not returned")
        self._running[key] = answer = in_thread(work, "aside")
        answer.add_done_callback(partial(self._came_back, key))
        await self._outcome(what, answer)
        return answer.result()

    async def _outcome(self, what: str, answer: asyncio.Future[Any]) -> None:
        answered, _ = await asyncio.wait({answer}, timeout=self._limit_s)
        if not answered:
            raise NoAnswerError(what, f"there was no answer within {self._limit_s:g} s")

    def _came_back(self, key: tuple[str, str], answer: asyncio.Future[Any]) -> None:
        del self._running[key]
        if not answer.cancelled():
            answer.exception()  # mark it as retrieved: the caller may be gone


class Routes:
    """One method per route: read the request, call the service, wrap the view."""

    def __init__(
        self, service: Service, visibility: Callable[[], Visibility] = lambda: Visibility.ALL
    ) -> None:
        self._service, self._visibility = service, visibility
        self._aside = Aside()
        self._texts = ready_threads(1, "texts")
        self._turns: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()
        self._names: dict[int, str] = {}

    def close(self) -> None:
        """Stop the thread."""
        self._texts.shutdown(wait=False, cancel_futures=True)

    def app(self) -> Starlette:
        """Return the application with all routes."""
        trainer = "/v1/trainers/{trainer_id}"
        routes = [
            Route("/v1/status", self._status, methods=["GET"]),
            Route("/v1/nodes", self._nodes, methods=["GET"]),
            Route("/v1/timeline", self._timeline, methods=["GET"]),
            Route("/v1/trainers", self._trainers, methods=["GET"]),
            Route("/v1/trainers", self._submit, methods=["POST"]),
            Route(trainer, self._trainer, methods=["GET"]),
            Route(trainer, self._cancel, methods=["DELETE"]),
            Route(trainer, self._change, methods=["PATCH"]),
            Route(f"{trainer}/requeue", self._requeue, methods=["POST"]),
            Route(f"{trainer}/explain", self._explain, methods=["GET"]),
            Route(f"{trainer}/logs", self._logs, methods=["GET"]),
            Route("/v1/studies", self._studies, methods=["GET"]),
            Route("/v1/studies/{study}", self._study, methods=["GET"]),
            Route("/v1/studies/{study}/trials", self._submit_trials, methods=["POST"]),
            Route("/v1/harm", self._harm, methods=["GET"]),
            Route("/v1/account", self._account, methods=["GET"]),
            Route("/v1/policy/reload", self._reload, methods=["POST"]),
            Route("/v1/drain", self._drain, methods=["POST"]),
            Route("/v1/resume", self._resume, methods=["POST"]),
            Route("/v1/shutdown", self._shutdown, methods=["POST"]),
            Route("/metrics", self._metrics, methods=["GET"]),  # where Prometheus looks
        ]
        return Starlette(routes=routes, exception_handlers=HANDLERS)

    # ---- routes ------------------------------------------------------------------------

    async def _status(self, request: Request) -> Response:
        peer = await self._peer(request)
        return await self._answer(
            request,
            self._service.status,
            lambda view: document("status", self._sight(peer, view.trainers).status(view)),
        )

    async def _nodes(self, request: Request) -> Response:
        peer = await self._peer(request)

        def look() -> tuple[Sight, Sequence[NodeView]]:  # of one moment: whose node is hidden
            return self._sight(peer, self._service.trainers()), self._service.nodes()

        return await self._answer(
            request, look, lambda looked: listing("nodes", Sight.nodes(*looked))
        )

    async def _timeline(self, request: Request) -> Response:
        peer, since = await self._peer(request), read_seen(request.query_params)
        if since is not None:  # without its turn, as ``_study``
            await self._service.news(since, read_wait(request.query_params, NEWS_LIMIT_S))

        def look() -> tuple[Sight, TimelineView]:
            view = self._service.timeline(since)
            has_private = self._is_own() or any(curve.losses for curve in view.curves)
            trainers: Sequence[TrainerView] = ()
            if has_private and not is_trusted(peer, ""):
                trainers = self._service.trainers()
            return self._sight(peer, trainers), view

        return await self._answer(
            request, look, lambda looked: document("timeline", Sight.timeline(*looked))
        )

    async def _trainers(self, request: Request) -> Response:
        peer = await self._peer(request)
        return await self._answer(
            request,
            self._service.trainers,
            lambda views: listing("trainers", self._sight(peer, views).trainers(views)),
        )

    async def _trainer(self, request: Request) -> Response:
        peer, trainer_id = await self._peer(request), trainer_id_of(request)

        def seen() -> TrainerView:
            if self._is_own():
                self._check_own(trainer_id, peer)
            return self._service.trainer(trainer_id)

        return await self._answer(request, seen, _one_for(peer))

    async def _explain(self, request: Request) -> Response:
        peer, trainer_id = await self._peer(request), trainer_id_of(request)
        self._check_own(trainer_id, peer)

        def look() -> tuple[Sight, Callable[[], Explanation]]:  # of one moment, as ``_nodes``
            return self._sight(peer, self._service.trainers()), self._service.explain(trainer_id)

        # It takes an allocation for each constraint that changed something: beside the event loop.
        def text(looked: tuple[Sight, Callable[[], Explanation]]) -> Any:
            sight, say = looked
            return document("explain", sight.explanation(say()))

        return await self._answer(request, look, text)

    async def _logs(self, request: Request) -> Response:
        trainer_id = trainer_id_of(request)
        spec = self._check_own(trainer_id, await self._peer(request)).spec
        # Counts for the owner, whose files are read, not for the requester.
        find = partial(self._service.logs, trainer_id)
        files = await self._aside.call(spec.user, spec.checkpoint_dir, find)
        return await self._answer(
            request, lambda: files, partial(listing, "logs", trainer_id=trainer_id)
        )

    async def _harm(self, request: Request) -> Response:
        harm = partial(self._service.harm, since_s_of(request))
        return await self._answer(request, harm, partial(document, "harm"))

    async def _account(self, request: Request) -> Response:
        peer = await self._peer(request)
        is_own = self._is_own() and not is_trusted(peer, "")
        selection = asked_of(request, user=peer.user if is_own else "")
        account = partial(self._service.account, selection)
        return await self._answer(request, account, lambda told: document("account", told()))

    async def _metrics(self, request: Request) -> Response:
        async with self._turn(request):
            text = self._service.metrics()
        return PlainTextResponse(text, headers={"Content-Type": METRICS_TYPE})

    async def _submit(self, request: Request) -> Response:
        body, peer = await body_of(request), await self._peer(request)
        async with self._turn(request):
            spec = await self._beside(partial(read_submission, body))
        check_submitter(spec.user, peer)
        await self._check_directory(spec, peer)

        def submit() -> TrainerView:
            check_place(spec, self._service.trainers())  # again: time has passed
            return self._service.submit(spec, peer)

        return await self._answer(request, submit, _one_for(peer), 201)

    async def _cancel(self, request: Request) -> Response:
        peer, trainer_id = await self._peer(request), trainer_id_of(request)
        self._check_own(trainer_id, peer)
        now = request.query_params.get("now") == "1"
        cancel = partial(self._service.cancel, trainer_id, peer, now=now)
        return await self._done(request, peer, cancel)

    async def _change(self, request: Request) -> Response:
        body, peer = await body_of(request), await self._peer(request)
        async with self._turn(request):
            change = await self._beside(partial(read_change, body))
        self._check_own(trainer_id_of(request), peer)
        changing = partial(self._service.change, trainer_id_of(request), change, peer)
        return await self._done(request, peer, changing)

    async def _requeue(self, request: Request) -> Response:
        peer, trainer_id = await self._peer(request), trainer_id_of(request)
        record = self._check_own(trainer_id, peer)
        if record.state.is_final:  # another trainer may use its directory now
            try:
                await self._check_directory(record.spec, peer)
            except TakenError as error:
                raise error.of_requeue(trainer_id) from error
        return await self._done(request, peer, partial(self._service.requeue, trainer_id, peer))

    async def _studies(self, request: Request) -> Response:
        peer = await self._peer(request)
        studies = partial(self._service.trials.studies, peer.user)
        return await self._answer(request, studies, partial(listing, "studies"))

    async def _study(self, request: Request) -> Response:
        peer, study = await self._peer(request), str(request.path_params["study"])
        if (since := read_seen(request.query_params)) is not None:
            limit_s = read_wait(request.query_params, NEWS_LIMIT_S)
            # Without its turn: the user's other requests must not wait for this one.
            await self._service.trials.news(peer.user, study, since, limit_s)
        view = partial(self._service.trials.study, peer.user, study, since)
        return await self._answer(request, view, partial(document, "study"))

    async def _submit_trials(self, request: Request) -> Response:
        body, peer = await body_of(request), await self._peer(request)
        study, trials = str(request.path_params["study"]), self._service.trials
        async with self._turn(request):
            specs = await self._beside(partial(read_trials, body, study))
        check_submitter(specs[0].user, peer)
        if unknown := trials.unknown(specs):
            await self._check_directories(unknown, peer)
        submit = partial(trials.submit, specs, peer)
        return await self._answer(request, submit, partial(listing, "trials"), 201)

    async def _reload(self, request: Request) -> Response:
        peer = await self._peer(request)
        async with self._turn(request):
            view = await self._service.reload(peer)
            return await self._beside(lambda: as_json(document("reload", view)))

    async def _drain(self, request: Request) -> Response:
        body, peer = await body_of(request), await self._peer(request)
        async with self._turn(request):
            limit_s = await self._beside(partial(read_limit, body))
            view = self._service.drain(peer, limit_s)
            await asyncio.to_thread(self._service.flush)  # the next daemon is to know
        return as_json(document("drain", view), 202)

    async def _resume(self, request: Request) -> Response:
        peer = await self._peer(request)
        async with self._turn(request):
            takes_nodes = self._service.resume(peer)
            await asyncio.to_thread(self._service.flush)
        return as_json(document("resume", {"is_ending": not takes_nodes}))

    async def _shutdown(self, request: Request) -> Response:
        body = await body_of(request)
        async with self._turn(request):
            order = await self._beside(lambda: check_schema("shutdown", parse(body)))
        release = order.get("release", "")
        if release not in ("", "saved", "now"):
            raise CodecError("release", "must be 'saved' or 'now'")
        self._service.shutdown(await self._peer(request), release)
        return as_json(document("shutdown", {}), 202)

    # ---- helpers -----------------------------------------------------------------------

    async def _answer(
        self,
        request: Request,
        ask: Callable[[], T],
        write: Callable[[T], dict[str, Any]],
        status: int = 200,
    ) -> Response:
        async with self._turn(request):
            view = ask()
            return await self._beside(lambda: as_json(write(view), status))

    async def _done(self, request: Request, peer: Peer, do: Callable[[], TrainerView]) -> Response:
        """Answer when what was done is on disk."""
        async with self._turn(request):
            view = do()
            await asyncio.to_thread(self._service.flush)
            return await self._beside(lambda: as_json(_one_for(peer)(view)))

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    def _turn(self, request: Request) -> asyncio.Lock:
        return self._turns.setdefault(credentials_of(request).uid, asyncio.Lock())

    async def _peer(self, request: Request) -> Peer:
        credentials = credentials_of(request)
        name = self._names.get(credentials.uid)
        if name is None:  # a directory service may take long
            find = partial(user_name, credentials.uid)
            name = await self._aside.call(f"uid {credentials.uid}", "The list of accounts", find)
            if len(self._names) < MOST_NAMES:
                self._names[credentials.uid] = name
        return Peer(uid=credentials.uid, user=name, pid=credentials.pid)

    def _is_own(self) -> bool:
        return self._visibility() == Visibility.OWN

    def _sight(self, peer: Peer, views: Iterable[TrainerView]) -> Sight:
        return Sight.of(peer, views, is_own=self._is_own())

    def _check_own(self, trainer_id: str, peer: Peer) -> TrainerRecord:
        """Return a trainer that this user may look into or change."""
        record = self._service.trainer(trainer_id).record
        check_own(record, peer, is_secret=self._is_own())
        return record

    async def _check_directory(self, spec: TrainerSpec, peer: Peer) -> None:
        rivals = check_place(spec, self._service.trainers())
        if not spec.checkpoint_dir:
            return
        real = await self._aside.call(
            peer.user, spec.checkpoint_dir, partial(resolve_directory, spec)
        )
        if rivals:
            # One that hangs must not block the user's other directories.
            with contextlib.suppress(NoAnswerError):
                check = partial(check_real, spec, real, rivals)
                await self._aside.call(peer.user, "other directories", check)

    async def _check_directories(self, specs: Sequence[TrainerSpec], peer: Peer) -> None:
        rivals = check_places(specs, self._service.trainers())
        first = specs[0]
        real = await self._aside.call(
            peer.user, first.checkpoint_dir, partial(resolve_directory, first)
        )
        if rivals:
            with contextlib.suppress(NoAnswerError):
                check = partial(check_reals, specs, real, rivals)
                await self._aside.call(peer.user, "other directories", check)


def _one_for(peer: Peer) -> Callable[[TrainerView], dict[str, Any]]:
    return lambda view: document("trainer", for_peer(view, peer))
