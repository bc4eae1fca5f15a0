# SPDX-License-Identifier: Apache-2.0
"""The energy counter and the SM clock of the first GPU, sampled beside the work (NVML)."""
import bisect
import ctypes
import threading
import time

SM_CLOCK = 1  # nvmlClockType_t


class Monitor:
    """Samples from construction to close(). The counter moves in steps of some 20 to 100 ms, so
    the energy at a moment is interpolated between two steps."""

    def __init__(self, every_s=0.004):
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.nvml.nvmlInit_v2()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))
        self.steps, self.clocks = [], []  # (time, joules) when the counter moved; (time, MHz)
        self.every_s, self.running = every_s, True
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def read(self, name, kind, *arguments):
        value = kind()
        status = getattr(self.nvml, name)(self.device, *arguments, ctypes.byref(value))
        return None if status else value.value

    def sample(self):
        while self.running:
            now = time.monotonic()
            millijoules = self.read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
            if millijoules and (not self.steps or millijoules * 1e-3 != self.steps[-1][1]):
                self.steps.append((now, millijoules * 1e-3))
            self.clocks.append((now, self.read("nvmlDeviceGetClockInfo", ctypes.c_uint, SM_CLOCK)))
            time.sleep(self.every_s)

    def close(self):
        self.running = False
        self.thread.join()

    def joules_at(self, when):
        at = bisect.bisect(self.steps, (when, 0.0))
        if at == 0 or at == len(self.steps):
            return None
        (t0, e0), (t1, e1) = self.steps[at - 1], self.steps[at]
        return e0 + (e1 - e0) * (when - t0) / (t1 - t0)

    def joules(self, begin, end):
        a, b = self.joules_at(begin), self.joules_at(end)
        return None if a is None or b is None else b - a

    def mhz(self, begin, end):
        """The middle one of the samples; the one before if none lies in between."""
        first = bisect.bisect(self.clocks, (begin, 0))
        inside = sorted(c for t, c in self.clocks[first:] if t <= end and c)
        inside = inside or [c for _, c in self.clocks[max(0, first - 1):first]]
        return inside[len(inside) // 2] if inside else None

    def step_ms(self):
        """How long the counter stays between two steps, the middle one of all."""
        gaps = sorted(b[0] - a[0] for a, b in zip(self.steps, self.steps[1:]))
        return gaps[len(gaps) // 2] * 1e3 if gaps else None
