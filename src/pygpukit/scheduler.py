"""Tasks on a device, within what it has.

    with gp.Scheduler(workers=2) as scheduler:
        a = scheduler.submit(prepare, x, memory="1GiB")
        b = scheduler.submit(train, memory="3GiB", after=[a], priority=-1)
        print(scheduler.explain(b))      # why it is not running
        result = b.result(timeout=60)

A task runs on a stream of its own. What it allocates is charged to it and limited; it is completed when its
function has returned and its device work is done. `docs/scheduling.md` says what is promised and how.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from . import _native
from ._native import AdmissionController as AdmissionController
from ._native import AdmissionDecision as AdmissionDecision
from ._native import Device
from ._native import QosClass as QosClass
from ._native import QosEvaluation as QosEvaluation
from ._native import QosPolicyEvaluator as QosPolicyEvaluator
from ._native import QosTaskMeta as QosTaskMeta
from ._native import TaskCancelledError as TaskCancelledError
from ._native import TaskDeadlineError as TaskDeadlineError
from ._native import TaskDependencyError as TaskDependencyError
from ._native import TaskError as TaskError
from ._native import TaskRejectedError as TaskRejectedError
from ._native import TaskShutdownError as TaskShutdownError
from ._native import TaskWaitError as TaskWaitError

T = TypeVar("T")

_COMPLETED, _RAISED, _CANCELLED = range(3)  # as the binding reads them


def cancel_requested() -> bool:
    """Whether the task that this thread runs was asked to end. False outside of a task."""
    return _native._task_cancel_requested()


def check_cancelled() -> None:
    """Raises TaskCancelledError where the task that this thread runs was asked to end."""
    _native._task_check_cancelled()


class Future(concurrent.futures.Future, Generic[T]):  # type: ignore[type-arg]
    """The result of a task that was submitted. It can be awaited, and used with `concurrent.futures`.

    Inside a task, result() lets another task run in this one's place, and raises TaskWaitError where that
    could never end; `concurrent.futures.wait` does neither.
    """

    def __init__(self) -> None:
        super().__init__()
        self._task: _native._Task
        self._value: Any = None
        self._raised: BaseException | None = None
        self._settling = threading.Lock()
        self._is_settled = False

    @property
    def id(self) -> int:
        return self._task.id

    @property
    def name(self) -> str:
        return self._task.name

    @property
    def state(self) -> str:
        """'pending', 'queued', 'running', 'completed', 'failed', 'cancelled' or 'rejected'."""
        return self._task.state

    def explain(self) -> str:
        """Why the task is not running, in words."""
        return self._task.explain()

    def running(self) -> bool:
        return self.state == "running"

    def done(self) -> bool:
        return self._task.is_done()

    def cancelled(self) -> bool:
        return self._task.is_done() and self._ended(super().cancelled)

    def cancel(self) -> bool:
        """Cancels the task where it has not started. A running one is told (see check_cancelled): False."""
        return self._task.cancel() or self.cancelled()

    def result(self, timeout: float | None = None) -> T:
        """What the function returned, or raises what it raised, unchanged.

        Raises TimeoutError after `timeout` seconds, a TaskError where the task never ran, a DriverError
        where its device work failed, CancelledError where it was cancelled.
        """
        self._wait(timeout)
        return cast(T, super().result())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception()

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()

    def _wait(self, timeout: float | None) -> None:
        if not self._task.wait(timeout):
            raise concurrent.futures.TimeoutError
        self._settle()

    def _ended(self, ask: Callable[[], bool]) -> bool:
        self._settle()
        return ask()

    def _settle(self) -> None:
        """Takes over how the task ended: whoever hears of it first does so."""
        with self._settling:
            if self._is_settled:
                return
            self._is_settled = True
        failure = self._raised
        if failure is None:
            try:
                self._task.check()
            except BaseException as error:
                failure = error
        value, self._value, self._raised = self._value, None, None
        if isinstance(failure, TaskCancelledError):
            super().cancel()
            self.set_running_or_notify_cancel()
        elif failure is not None:
            self.set_exception(failure)
        else:
            self.set_result(value)


def _run(future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    try:
        future._value = function(*args)
    except TaskCancelledError as error:
        future._raised = error
        return _CANCELLED
    except BaseException as error:
        future._raised = error
        return _RAISED
    return _COMPLETED


class Scheduler:
    """Runs Python functions as tasks on a device. Leaving its `with` block waits for all of them.

    workers: functions that run at once, beside those that wait for other tasks.
    policy: 'fifo', 'shortest_job_first', 'priority', 'deadline' or 'fair'.
    memory: bytes (or '4GiB') that tasks may have reserved; by default all that the device has.
    max_queued, max_running: numbers of tasks; more are rejected, or wait.
    ageing: seconds of waiting that count as one level of priority.
    patience: seconds after which smaller tasks no longer pass one that does not fit.
    """

    def __init__(
        self,
        *,
        workers: int = 4,
        policy: str = "fifo",
        device: Device | str | None = None,
        memory: int | str | None = None,
        bandwidth: float = 1.0,
        compute: float = 1.0,
        max_queued: int | None = 65536,
        max_running: int | None = None,
        ageing: float = 1.0,
        patience: float = 1.0,
    ) -> None:
        self._native = _native._Scheduler(
            workers=workers,
            policy=policy,
            device=device,
            memory=memory,
            bandwidth=bandwidth,
            compute=compute,
            max_queued=max_queued,
            max_running=max_running,
            ageing=ageing,
            patience=patience,
        )
        _open.add(self)

    @property
    def device(self) -> Device:
        return self._native.device

    def submit(
        self,
        function: Callable[..., T],
        *args: Any,
        meta: QosTaskMeta | None = None,
        memory: int | str = 0,
        memory_limit: int | str | None = None,
        bandwidth: float = 0.0,
        priority: int = 0,
        compute: float = 0.0,
        name: str | None = None,
        tenant: str | None = None,
        expected: float = 0.0,
        deadline: float | None = None,
        after: Iterable[Future[Any]] = (),
    ) -> Future[T]:
        """Queues function(*args) as a task.

        meta: what it asks for, with its QoS class. Without it, the task is Burstable: `memory` bytes are
        reserved and up to `memory_limit` may be used, `bandwidth` is a share of the device, and of
        priorities smaller is more urgent.
        compute: a share of the device, reserved. expected: seconds that it will run, 0 where unknown.
        deadline: seconds from now by which it must have started. after: tasks that must complete first.
        tenant: one of add_tenant; by default that of the calling thread's current stream, so a task that is
        submitted inside `with gp.partition(...)` runs in that partition.

        A task that can never run comes back rejected: result() raises TaskRejectedError.
        """
        if not callable(function):
            raise _native.InvalidTypeError(f"Scheduler.submit: expected a function, got {function!r}")
        earlier = list(after) if isinstance(after, Iterable) else [None]
        if not all(isinstance(each, Future) for each in earlier):
            raise _native.InvalidTypeError(
                f"Scheduler.submit: argument 'after': expected tasks of this scheduler, got {after!r}"
            )
        if meta is None:
            meta = QosTaskMeta.burstable(memory, memory_limit, bandwidth=bandwidth, priority=priority)
        elif (memory, memory_limit, bandwidth, priority) != (0, None, 0.0, 0):
            raise _native.InvalidValueError(
                "Scheduler.submit: expected either meta or memory, memory_limit, bandwidth and priority"
            )
        future: Future[T] = Future()
        future._task = self._native.submit(
            functools.partial(_run, future, function, args),
            meta,
            compute,
            getattr(function, "__name__", "") if name is None else name,
            tenant,
            expected,
            deadline,
            [each._task for each in earlier],
        )
        future._task.on_done(future._settle)
        return future

    def evaluate(
        self, meta: QosTaskMeta, *, compute: float = 0.0, tenant: str | None = None
    ) -> AdmissionDecision:
        """What admission would say to such a task now."""
        return self._native.evaluate(meta, compute, tenant)

    def add_tenant(
        self,
        name: str,
        *,
        memory: int | str | None = None,
        bandwidth: float = 1.0,
        compute: float = 1.0,
        max_queued: int | None = None,
        max_running: int | None = None,
        weight: float = 1.0,
    ) -> None:
        """A tenant that tasks may be submitted for. Its memory limit holds for what its tasks allocate too.

        weight: its part of the running time under the policy 'fair'.
        """
        self._native.add_tenant(name, memory, bandwidth, compute, max_queued, max_running, weight)

    def explain(self, future: Future[Any]) -> str:
        """Why a task is not running: what it waits for, what it lacks and who holds it, its position."""
        return future.explain()

    def stats(self) -> dict[str, Any]:
        """Numbers of tasks by state, worker threads, and what is reserved (memory in bytes, else shares)."""
        return self._native.stats()

    def shutdown(
        self, wait: bool = True, *, cancel_pending: bool = False, timeout: float | None = None
    ) -> bool:
        """Accepts nothing more. False where `timeout` seconds went by before all tasks had ended."""
        return self._native.shutdown(wait, cancel_pending, timeout)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=True, cancel_pending=error is not None)


_open: weakref.WeakSet[Scheduler] = weakref.WeakSet()
_EXIT_SECONDS = 10.0


def _at_exit() -> None:
    """What has not started is cancelled. What runs gets some time, but does not keep Python from ending."""
    for scheduler in list(_open):
        # Refused for one of the process that this one was forked from.
        with contextlib.suppress(_native.UnsupportedError):
            scheduler.shutdown(cancel_pending=True, timeout=_EXIT_SECONDS)


atexit.register(_at_exit)
