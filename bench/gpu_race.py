# SPDX-License-Identifier: Apache-2.0
"""Runs contestants side by side on the GPU: cold bursts after idle, and sustained blocks.

A contestant is (name, run); run() enqueues one call on the current stream. Calls are replayed from
CUDA graphs, so the host's speed does not enter. Needs torch.
"""
import collections
import statistics
import time

import torch

BURST_MS, IDLE_S = 8, 0.03
LEAD_IN_MS, LOAD_S = 20, 1.0
SPIN_CYCLES = 400_000  # holds the GPU back until all of a burst is in its queue
Lane = collections.namedtuple("Lane", "name graph calls ms")  # ms of one replay
Figure = collections.namedtuple("Figure", "name tflops mhz watts joules")  # joules of one call


def timed_ms(work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SPIN_CYCLES)
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def captured(name, run, times, calls):
    """A graph of run() so many times, which are so many calls."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return Lane(name, graph, calls, timed_ms(graph.replay))


def lane(name, run):
    """A graph of about BURST_MS of calls."""
    for _ in range(2):
        run()
    calls = max(1, round(BURST_MS / timed_ms(run)))
    return captured(name, run, calls, calls)


def lanes_of(contestants):
    """One that cannot run is named and left out."""
    lanes = []
    for name, run in contestants:
        try:
            lanes.append(lane(name, run))
        except Exception as error:  # whatever a library throws
            print(f"  {name} left out: {str(error).splitlines()[0][:160]}", flush=True)
    return lanes


def rotations(lanes, turns):
    """Every lane once a turn; each turn begins one further and every other runs backwards."""
    for turn in range(turns):
        order = list(range(len(lanes)))[::-1 if turn % 2 else 1]
        for i in order[turn % len(lanes):] + order[:turn % len(lanes)]:
            yield i


def cold(lanes, flops, monitor, turns=7):
    times, clocks = [[] for _ in lanes], [[] for _ in lanes]
    for i in rotations(lanes, turns):
        time.sleep(IDLE_S)
        begin = time.monotonic()
        times[i].append(timed_ms(lanes[i].graph.replay) / lanes[i].calls)
        clocks[i].append(monitor.mhz(begin, time.monotonic()) or 0)
    return [Figure(one.name, flops / statistics.median(t) * 1e-9, statistics.median(c), None, None)
            for one, t, c in zip(lanes, times, clocks)]


class Block:
    """One lane's share of a turn, enqueued at once: a lead-in, then what is measured."""

    def __init__(self, lanes, index, ms):
        self.index, one = index, lanes[index]
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(max(1, round(LEAD_IN_MS / one.ms))):
            one.graph.replay()
        self.begin.record()
        replays = max(1, round(ms / one.ms))
        for _ in range(replays):
            one.graph.replay()
        self.end.record()
        self.calls = replays * one.calls

    def wait(self):
        self.end.synchronize()
        self.to = time.monotonic()
        self.ms = self.begin.elapsed_time(self.end)
        self.since = self.to - self.ms * 1e-3
        return self


def run_blocks(lanes, turns, ms):
    """The next block is in the queue before the last one ends, so the GPU never idles."""
    start = time.monotonic()
    while time.monotonic() - start < LOAD_S:
        for one in lanes:
            one.graph.replay()
        torch.cuda.synchronize()
    done, before = [], None
    for i in rotations(lanes, turns):
        block = Block(lanes, i, ms)
        if before is not None:
            done.append(before.wait())
        before = block
    # One more keeps the power up until the counter has moved past the last block's end.
    after = Block(lanes, before.index, 200)
    done.append(before.wait())
    after.wait()
    return done


def sustained(lanes, flops, monitor, turns=5, ms=100):
    done = run_blocks(lanes, turns, ms)
    figures = []
    for i, one in enumerate(lanes):
        mine = [b for b in done if b.index == i]
        joules = [monitor.joules(b.since, b.to) for b in mine]
        calls, seconds = sum(b.calls for b in mine), sum(b.ms for b in mine) * 1e-3
        total = None if None in joules else sum(joules)
        figures.append(Figure(
            one.name, statistics.median(flops * b.calls / b.ms * 1e-9 for b in mine),
            statistics.median(monitor.mhz(b.since, b.to) or 0 for b in mine),
            total and total / seconds, total and total / calls))
    return figures
