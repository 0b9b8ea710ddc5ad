"""Tasks from Python: results and exceptions unchanged, waiting, cancelling, limits that hold, and the end."""

import asyncio
import concurrent.futures
import copy
import threading
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import pygpukit as gp
from pygpukit import scheduler as sched
from support import run_python

MiB = 1 << 20
LONG = 60  # seconds; no test waits for it: where it passes, something hangs


@pytest.fixture
def scheduler():
    with gp.Scheduler(workers=2, memory="64MiB") as made:
        yield made


class Mine(Exception):
    pass


def test_results_and_exceptions_come_out_unchanged(scheduler):
    failure = Mine("mine")
    assert scheduler.submit(lambda a, b: a * b, 6, 7).result(LONG) == 42
    future = scheduler.submit(raising, failure)
    assert future.exception(LONG) is failure
    with pytest.raises(Mine) as caught:
        future.result(LONG)
    assert caught.value is failure
    assert future.state == "failed"
    a = scheduler.submit(lambda: gp.arange(10) * 2).result(LONG)
    np.testing.assert_array_equal(a.to_numpy(), np.arange(10) * 2)


def raising(failure):
    raise failure


def test_arguments_are_checked(scheduler):
    with pytest.raises(gp.InvalidTypeError):
        scheduler.submit(3)
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, memory=2, memory_limit=1)
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, memory=-1)
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, memory=1 << 64)
    with pytest.raises(gp.InvalidTypeError):
        scheduler.submit(int, memory=1.5)
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, compute=float("nan"))
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, deadline=-1)
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, tenant="nobody")
    with pytest.raises(gp.InvalidValueError):
        scheduler.submit(int, meta=gp.QosTaskMeta.guaranteed(1), memory=1)
    with pytest.raises(gp.InvalidValueError, match="shortest_job_first"):
        gp.Scheduler(policy="lifo")
    with pytest.raises(gp.InvalidValueError):
        gp.Scheduler(workers=0)
    assert scheduler.stats()["running"] == 0


def test_what_can_never_run_is_rejected(scheduler):
    future = scheduler.submit(int, memory="65MiB")
    assert future.state == "rejected"
    with pytest.raises(sched.TaskRejectedError, match="never more than 64 MiB") as caught:
        future.result(LONG)
    assert caught.value.reason == "exceeds_memory"
    assert scheduler.evaluate(gp.QosTaskMeta.guaranteed("65MiB")).verdict == "rejected"
    with gp.Scheduler(max_queued=0) as full:
        failure = full.submit(int).exception(LONG)
    assert failure.reason == "queue_full"
    assert failure.retry_after > 0


def test_limits_with_which_nothing_would_run_are_refused(scheduler):
    with pytest.raises(gp.InvalidValueError, match="Scheduler: argument 'max_running': expected at least 1"):
        gp.Scheduler(max_running=0)
    with pytest.raises(gp.InvalidValueError, match="add_tenant: argument 'max_running': expected at least 1"):
        scheduler.add_tenant("none", max_running=0)
    with pytest.raises(gp.InvalidValueError, match="add_tenant: argument 'memory': expected more than 0"):
        scheduler.add_tenant("none", memory=0)


def test_a_memory_limit_holds_for_what_the_task_allocates(scheduler):
    def allocate(nbytes):
        return gp.empty(nbytes, gp.uint8).nbytes

    assert scheduler.submit(allocate, 3 * MiB, memory_limit=4 * MiB).result(LONG) == 3 * MiB
    with pytest.raises(gp.OutOfMemoryError):
        scheduler.submit(allocate, 5 * MiB, memory_limit=4 * MiB).result(LONG)
    scheduler.add_tenant("small", memory=2 * MiB)
    with pytest.raises(gp.OutOfMemoryError):
        scheduler.submit(allocate, 3 * MiB, tenant="small").result(LONG)
    assert scheduler.submit(int, memory=3 * MiB, tenant="small").state == "rejected"


def test_dependencies_are_tasks(scheduler):
    for wrong in (5, [None], [concurrent.futures.Future()]):
        with pytest.raises(gp.InvalidTypeError, match="Scheduler.submit: argument 'after': expected tasks"):
            scheduler.submit(int, after=wrong)


def test_dependencies(scheduler):
    order = []
    one = scheduler.submit(order.append, 1)
    two = scheduler.submit(order.append, 2, after=[one])
    scheduler.submit(order.append, 3, after=[two, one]).result(LONG)
    assert order == [1, 2, 3]
    bad = scheduler.submit(raising, Mine(), name="bad")
    after = scheduler.submit(int, after=[bad])
    with pytest.raises(sched.TaskDependencyError, match="'bad' did not complete") as caught:
        after.result(LONG)
    assert caught.value.cause_id == bad.id
    assert after.state == "cancelled"


def test_waiting_cancelling_and_why(scheduler):
    go = threading.Event()
    called = []
    running = scheduler.submit(go.wait, memory="64MiB", name="holder")
    queued = scheduler.submit(int, memory="32MiB")
    pending = scheduler.submit(int, after=[queued])
    while not running.running():
        time.sleep(0)
    with pytest.raises(TimeoutError):
        queued.result(0.01)
    assert not queued.done()
    text = scheduler.explain(queued)
    assert "needs 32 MiB of which 0 bytes is free" in text
    assert "'holder' (64 MiB)" in text.partition("held by")[2]
    assert "waits for" in pending.explain()
    queued.add_done_callback(called.append)
    assert queued.cancel()
    assert queued.cancelled()
    assert called == [queued]
    with pytest.raises(concurrent.futures.CancelledError):
        queued.result(LONG)
    assert isinstance(pending.exception(LONG), sched.TaskDependencyError)
    assert not running.cancel()
    go.set()
    assert running.result(LONG) is True
    late = scheduler.submit(until_cancelled)
    while not late.running():
        time.sleep(0)
    late.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        late.result(LONG)
    assert late.state == "cancelled"


def until_cancelled():
    while not sched.cancel_requested():
        time.sleep(0)
    sched.check_cancelled()


def test_deadlines_and_priorities():
    go = threading.Event()
    order = []
    with gp.Scheduler(workers=1, policy="priority", ageing=100.0) as one:
        first = one.submit(go.wait)
        while not first.running():
            time.sleep(0)
        missed = one.submit(int, deadline=0.0)
        for priority in (1, -1, 0):
            one.submit(order.append, priority, priority=priority)
        assert isinstance(missed.exception(LONG), sched.TaskDeadlineError)
        go.set()
    assert order == [-1, 0, 1]


def test_it_can_be_awaited_and_used_with_concurrent_futures(scheduler):
    async def both():
        return await asyncio.gather(scheduler.submit(pow, 2, 3), scheduler.submit(pow, 3, 2))

    assert asyncio.run(both()) == [8, 9]

    async def failing():
        await scheduler.submit(raising, Mine("awaited"))

    with pytest.raises(Mine, match="awaited"):
        asyncio.run(failing())
    done, _ = concurrent.futures.wait([scheduler.submit(pow, 2, i) for i in range(5)], LONG)
    assert sorted(each.result() for each in done) == [1, 2, 4, 8, 16]


def test_tasks_may_submit_and_wait_with_one_worker():
    with gp.Scheduler(workers=1, memory=100) as one:

        def depth(left):
            return 0 if left == 0 else 1 + one.submit(depth, left - 1).result()

        assert one.submit(depth, 20).result(LONG) == 20

        def needs(memory):
            return one.submit(int, memory=memory).result()

        assert one.submit(needs, 40, memory=60).result(LONG) == 0
        with pytest.raises(sched.TaskWaitError, match="deadlock"):
            one.submit(needs, 60, memory=60).result(LONG)
        with pytest.raises(sched.TaskWaitError):
            one.submit(one.shutdown).result(LONG)


def test_shutdown():
    go = threading.Event()
    made = gp.Scheduler(workers=1)
    running = made.submit(go.wait)
    waiting = made.submit(int)
    while not running.running():
        time.sleep(0)
    assert not made.shutdown(cancel_pending=True, timeout=0.01)
    assert isinstance(waiting.exception(LONG), sched.TaskShutdownError)
    assert isinstance(made.submit(int).exception(LONG), sched.TaskRejectedError)
    go.set()
    assert made.shutdown()
    assert running.result(LONG)
    # Dropped without a word, it runs what it has.
    futures = [gp.Scheduler(workers=1).submit(pow, 2, i) for i in range(5)]
    assert [each.result(LONG) for each in futures] == [1, 2, 4, 8, 16]


def test_python_ends_whatever_runs():
    code = """
import time, pygpukit as gp
s = gp.Scheduler(workers=1)
f = s.submit(time.sleep, 0.05)
g = s.submit(print, "never")
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    code = """
import time, pygpukit as gp, pygpukit.scheduler as sched
sched._EXIT_SECONDS = 0.1
def forever():
    while True: time.sleep(0.001)
f = gp.Scheduler(workers=1).submit(forever)
s = gp.Scheduler(workers=1)
f = s.submit(forever)
while not f.running(): time.sleep(0)
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forked_process_is_told():
    code = """
import os, pygpukit as gp
s = gp.Scheduler(workers=1)
f = s.submit(int)
assert f.result() == 0
g = s.submit(__import__("time").sleep, 0.2)
pid = os.fork()
if pid == 0:
    for call in (lambda: s.submit(int), g.result, g.cancel, s.shutdown, s.stats):
        try:
            call()
        except gp.UnsupportedError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    del s, f, g
    t = gp.Scheduler(workers=1).submit(pow, 2, 3)
    try:
        os._exit(0 if t.result(30) == 8 and not gp.device().is_cuda else 2)
    except gp.UnsupportedError as error:  # CUDA does not survive a fork
        os._exit(0 if gp.device().is_cuda and "forked" in str(error) else 3)
    finally:
        os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_qos():
    evaluator = gp.QosPolicyEvaluator("1KiB", 100e9)
    full = evaluator.reserve(gp.QosTaskMeta.guaranteed(1000, bandwidth=50e9))
    assert evaluator.memory_reserved == 1000
    assert evaluator.bandwidth_reserved == pytest.approx(50e9)
    best = evaluator.evaluate(gp.QosTaskMeta.best_effort())
    assert (best.verdict, best.reason) == ("throttle", "pressure")
    burst = evaluator.evaluate(gp.QosTaskMeta.burstable(10, 100, bandwidth=100e9))
    assert (burst.verdict, burst.factor) == ("throttle", pytest.approx(0.5))
    assert evaluator.evaluate(gp.QosTaskMeta.guaranteed(100)).reason == "memory_in_use"
    evaluator.release(full)
    with pytest.raises(gp.InvalidValueError):
        evaluator.release(full)
    assert gp.QosTaskMeta.guaranteed(5).memory_limit == 5
    assert gp.QosTaskMeta.best_effort().memory_limit is None
    assert gp.QosTaskMeta.burstable(5, 6).qos == gp.QosClass.Burstable
    with pytest.raises(gp.InvalidValueError):
        gp.QosTaskMeta.burstable(6, 5)
    with pytest.raises(gp.InvalidValueError):
        gp.QosPolicyEvaluator(0)


TOTAL = {0: 1000, 1: 600, 2: 400}  # bytes, by account
PARENT = {2: 1, 1: 0}


class AdmissionMachine(RuleBasedStateMachine):
    """AdmissionController against sums over a dict, in a tree of the device, a partition and a tenant: up to
    3,000 steps."""

    def __init__(self):
        super().__init__()
        self.real = gp.AdmissionController(1000, max_queued=6)
        assert self.real.add_account("partition", memory=600, max_running=3) == 1
        assert self.real.add_account("tenant", memory=400, parent=1) == 2
        self.queued, self.held = {}, {}
        self.next = 1

    def chain(self, account):
        while True:
            yield account
            if account == 0:
                return
            account = PARENT[account]

    def used(self, account, tasks):
        return [task for task in tasks.values() if account in self.chain(task[1])]

    def fits(self, memory, account):
        return all(
            sum(t[0] for t in self.used(a, self.held)) + memory <= TOTAL[a]
            and (a != 1 or len(self.used(a, self.held)) < 3)
            for a in self.chain(account)
        )

    @rule(memory=st.integers(0, 700), account=st.integers(0, 2), burst=st.booleans())
    def enqueue(self, memory, account, burst):
        meta = gp.QosTaskMeta.burstable(memory) if burst else gp.QosTaskMeta.guaranteed(memory)
        decision = self.real.enqueue(self.next, meta, account=account)
        never = any(memory > TOTAL[a] for a in self.chain(account))
        full = len(self.queued) >= 6
        assert decision.verdict == ("rejected" if never or full else "queued")
        if decision.verdict == "queued":
            self.queued[self.next] = (memory, account)
        self.next += 1

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def admit(self, data):
        task = data.draw(st.sampled_from(sorted(self.queued)))
        before = copy.copy(self.real).reserved()
        decision = self.real.admit(task)
        if self.fits(*self.queued[task]):
            assert decision.verdict == "admitted"
            self.held[task] = self.queued.pop(task)
        else:
            assert decision.verdict == "queued"
            assert decision.reason in ("memory", "running_limit")
            assert decision.needed > decision.available
            assert self.real.reserved() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        task = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[task]
        self.real.release(task)
        with pytest.raises(gp.InvalidValueError):
            self.real.release(task)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def withdraw(self, data):
        task = data.draw(st.sampled_from(sorted(self.queued)))
        del self.queued[task]
        self.real.withdraw(task)

    @invariant()
    def sums_agree(self):
        for account in (0, 1, 2):
            reserved = self.real.reserved(account)
            held = self.used(account, self.held)
            assert reserved["memory"] == sum(t[0] for t in held) <= TOTAL[account]
            assert reserved["running"] == len(held)
            assert reserved["queued"] == len(self.used(account, self.queued))


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=60, stateful_step_count=50)


def test_many_threads_at_once(scheduler):
    results = []

    def client(n):
        futures = [scheduler.submit(pow, n, i, memory=MiB * (i % 40)) for i in range(50)]
        results.append(sum(each.result(LONG) for each in futures) == sum(n**i for i in range(50)))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
    assert scheduler.stats()["memory_reserved"] == 0
