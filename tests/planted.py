#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the tests: plants one bug at a time in the library and wants the named test to fail.

    planted.py SOURCE BUILD [NAME]...     NAME: only the bugs whose names contain it

Each bug is one change of one source. That source alone is compiled anew, with the build's own
command, and linked before the library into the test. Without a bug the tests must pass.
"""
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

LIMIT_S = 600

# What is run; as little as finds the bugs.
TESTS = {
    "scheduled": ("random-program", ["--sched", "--seeds", "600", "--steps", "120"]),
    "scheduled long": ("random-program", ["--sched", "--seeds", "2000", "--steps", "120"]),
    "random": ("random-program", ["--seeds", "18", "--steps", "2000"]),
    "corrupt": ("test-corrupt", []),
    "faults": ("test-faults", []),
    "alloc": ("test-alloc", []),
    "tiers": ("test-tiers", []),
    "budget": ("test-budget", []),
    "levels": ("level-program", ["1", "2000"]),
    "levels 1301466": ("level-program", ["1301466", "1"]),
    "soak": ("soak", ["--seconds", "10", "--deadline-ms", "20000"]),
}

# (kind, name, test, source, text, planted text)
BUGS = [
    ("missing wait", "a read does not wait for the work on its ring slot", "scheduled",
     "offload/ring.c",
     "return r->taken - r->freed < r->size &&\n"
     "           hr_tickets_done(&l->tier->tickets, *hr_lower_used_by(l, f->slot));",
     "return r->taken - r->freed < r->size;"),
    ("missing wait", "a read to stay does not wait for the work on its slot", "scheduled",
     "offload/ring.c",
     "if (hr_tickets_done(&l->tier->tickets, *hr_lower_used_by(l, f->slot)))\n"
     "            return true;",
     "return true;"),
    ("missing wait", "a write does not wait for the work on its slot", "scheduled",
     "offload/lower.c",
     "return hr_tickets_done(&l->tier->tickets, "
     "*hr_lower_used_by(l, l->blocks->all[block].slot));",
     "return l->blocks->all[block].slot != HR_BLOCK_NONE;"),
    ("missing wait", "a wave is computed before its blocks are there", "random",
     "offload/ring.c",
     "if (r->entries[i].state < HR_FETCH_HERE)\n            return false;",
     "if (r->entries[i].state < HR_FETCH_COMING)\n            return false;"),
    ("missing wait", "append does not note that it used its blocks", "scheduled",
     "src/fetch.c",
     "*hr_lower_used_by(&t->lower, t->lower.blocks->all[blocks[b]].slot) = ticket;",
     "(void)blocks;"),
    ("missing wait", "attend does not note which slots it read", "scheduled",
     "src/fetch.c",
     "if (is_seen(&seen, b))\n                *hr_lower_used_by(&t->lower, slots[b]) = ticket;",
     "(void)slots;"),
    ("missing wait", "the copy of a fork does not note that it read the shared block", "scheduled",
     "src/fetch.c",
     "*hr_lower_used_by(&t->lower, step->copy_from[i]) = ticket;",
     ";"),
    ("missing wait", "zeroed rows do not note that they were written", "scheduled",
     "src/seq.c",
     "*hr_lower_used_by(lower, slot) = ticket;",
     "(void)ticket;"),
    ("missing wait", "blocks that were packed do not note the copies", "scheduled",
     "src/budget.c",
     "s->used_by[i] = ticket;",
     "(void)ticket;"),
    ("early reuse", "ring slots are free before the last wave that needs them", "tiers",
     "offload/ring.c",
     "if (r->entries[entry].last_wave >= r->next_wave)\n            return;",
     "if (r->entries[entry].first_wave >= r->next_wave)\n            return;"),
    ("early reuse", "a ring slot holds more entries than there is room", "tiers",
     "offload/ring.c",
     "return f->stays || first + r->wave_most - (uint32_t)(f - r->entries) <= r->size;",
     "return f->stays || first + r->wave_most - (uint32_t)(f - r->entries) <= r->size + 8;"),
    ("early reuse", "an extent of another pool comes without its ticket", "scheduled long",
     "offload/slab.c",
     "s->used_by[part * per + i] = *s->now;",
     "s->used_by[part * per + i] = 0;"),
    ("early reuse", "a block that is being written gives its slot away", "random",
     "offload/lower.c",
     "    enqueue(l, block);\n    return true;",
     "    enqueue(l, block);\n    hr_slab_give(&l->blocks->slots, x->slot);\n    return true;"),
    ("early reuse", "memory behind a smaller budget stays registered with io_uring", "budget",
     "src/budget.c",
     "hr_tier_resize(c->tier, from);",
     "(void)from;"),
    ("wrong generation", "every write has the same one", "tiers",
     "offload/lower.c",
     "l->births[block].generation = ++l->tier->generation;",
     "l->births[block].generation = l->tier->generation;"),
    ("wrong generation", "it is no part of the seed", "tiers",
     "offload/page.c",
     "at = put(at, id->generation, 8);",
     "at = put(at, 0, 8);"),
    ("wrong generation", "checksums are made without it", "tiers",
     "offload/mover.c",
     ".generation = b->generation,",
     ".generation = 1,"),
    ("dropped error", "a failed read ends well", "faults",
     "offload/transfer.c",
     "    fail(t, p->transfer, error);\n    end_piece",
     "    (void)error;\n    end_piece"),
    ("dropped error", "a short read is taken for a whole one", "faults",
     "offload/transfer.c",
     "if (done->result == p->bytes) {",
     "if (done->result == p->bytes || (!write && done->result > 0)) {"),
    ("dropped error", "a failed write is taken for a good one", "faults",
     "offload/lower.c",
     "bool failed = move->transfer.error != 0;",
     "bool failed = false;"),
    ("dropped error", "a wrong checksum is not noted", "corrupt",
     "offload/mover.c",
     "move->bad_block = i;",
     "move->bad_block = -1;"),
    ("dropped error", "a failed wave is computed all the same", "corrupt",
     "src/fetch.c",
     "if (status == HR_OK && a.ring->failed)",
     "if (status != HR_OK && a.ring->failed)"),
    ("dropped error", "a list that could not grow is filled", "alloc",
     "src/fetch.c",
     "if (!make_room(step, l))",
     "if (!make_room(step, l) && l < 0)"),
    ("unzeroed tail", "an open block goes to disk with what others wrote", "tiers",
     "src/residency.c",
     "if (life->lower == HR_LIFE_NONE)\n            clean_tail(seq, layer, b);",
     "if (life->lower == HR_LIFE_COMING)\n            clean_tail(seq, layer, b);"),
    ("unzeroed tail", "abort leaves the rows of V", "random",
     "src/step.c",
     "if (fill > 0 && n_kv > seq->length && !copied && any_appended(step)) {",
     "if (fill < 0 && n_kv > seq->length && !copied && any_appended(step)) {"),
    ("unzeroed tail", "truncate and short commits leave the rows of V", "random",
     "src/seq.c",
     "hr_seq_zero_values(seq, last, fill, end);",
     "(void)end;"),
    ("unzeroed tail", "one row too few is zeroed", "random",
     "src/seq.c",
     "hr_seq_zero_values(seq, last, fill, end);",
     "hr_seq_zero_values(seq, last, fill + 1, end);"),
    ("fork without copy", "rows are appended to a block that others own", "random",
     "src/reserve.c",
     "if (!hr_seq_must_copy(seq, layer)) {",
     "if (true) {"),
    ("fork without copy", "a fork does not own what it shares", "random",
     "src/seq.c",
     "hr_blocks_event(hr_cache_pool(cache, l), block, HR_LIFE_SHARE);",
     ";"),
    ("fork without copy", "the rows of the other owner are taken for free", "random",
     "src/seq.c",
     "seq->foreign_tail = length % HR_BLOCK_TOKENS != 0;",
     "seq->foreign_tail = false;"),
    ("fork without copy", "abort forgets the shared block", "random",
     "src/reserve.c",
     "    *block = *old;\n",
     "    (void)block;\n"),
    ("order", "blocks keep their old slots in the tables when they are packed", "random",
     "src/budget.c",
     "hr_seq_find_slots(s);",
     "(void)s;"),
    ("order", "the level leaves no room for a layer's new blocks", "random",
     "src/residency.c",
     "s->others - s->opens - 2 * s->adds, low",
     "s->others - s->opens, low"),
    ("order", "the level takes what other steps have reserved", "levels",
     "src/residency.c",
     "int64_t room = s->slots - s->others - s->opens",
     "int64_t room = s->slots - s->opens"),
    ("order", "open blocks are counted in one layer", "levels",
     "src/residency.c",
     "share.opens *= share.layers;",
     "(void)share.layers;"),
    ("order", "a new level takes what another step counts on", "levels",
     "src/residency.c",
     "*least = seq->keep[pool];",
     "*least = 0;"),
    ("order", "blocks that were shared stay beside another step's level", "levels 1301466",
     "src/residency.c",
     "if (hr_cache_pool_of(cache, l) == pool && !evict_above(s, step, l))",
     "if (hr_cache_pool_of(cache, l) == pool && (!s->step || s->step == step) &&\n"
     "                !evict_above(s, step, l))"),
    ("leak", "a sequence leaves a table behind", "soak",
     "src/seq.c",
     "    hr_alloc_put(alloc, seq->keep, keep_bytes(cache));\n    hr_alloc_put(alloc, seq,",
     "    hr_alloc_put(alloc, seq,"),
]


def run(command, folder, limit=LIMIT_S):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit,
                              check=False)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return "hang", ""


class Planter:
    def __init__(self, source, build, scratch):
        self.source, self.build, self.scratch = source, build, scratch
        with open(build / "compile_commands.json", encoding="utf-8") as file:
            entries = json.load(file)
        self.compile = {str((build / e["file"]).resolve().relative_to(source)): e
                        for e in entries if ".so." in e["output"]}
        self.objects = {}

    def link_command(self, program, output, first):
        target = f"tests/engine/{program}"
        _, text = run(["ninja", "-t", "commands", target], self.build)
        words = shlex.split(text.strip().splitlines()[-1])
        at = words.index("-o")
        words[at + 1] = str(output)
        return words[:at + 2] + first + words[at + 2:]

    def plant(self, number, file, old, new):
        """The object of a source with the bug; a string: what is wrong with the list."""
        text = (self.source / file).read_text(encoding="utf-8")
        if text.count(old) != 1:
            return f"{file} has its text {text.count(old)} times"
        changed = self.scratch / f"{number}-{pathlib.Path(file).name}"
        changed.write_text(text.replace(old, new), encoding="utf-8")
        entry = self.compile[file]
        words = [w for w in shlex.split(entry["command"]) if w != "-Werror"]
        output = changed.with_suffix(".o")
        words[words.index(entry["file"])] = str(changed)
        for flag, value in (("-o", output), ("-MF", output.with_suffix(".d"))):
            words[words.index(flag) + 1] = str(value)
        status, said = run(words, self.build)
        return output if status == 0 else f"it does not compile:\n{said}"

    def try_bug(self, number, bug):
        """(whether all is as it should be, a line)"""
        kind, name, test, file, old, new = bug
        begin = time.monotonic()
        planted = self.plant(number, file, old, new)
        if isinstance(planted, str):
            return False, f"{kind}: {name}: {planted}"
        program, arguments = TESTS[test]
        output = self.scratch / f"{number}-{program}"
        status, said = run(self.link_command(program, output, [str(planted)]), self.build)
        if status != 0:
            return False, f"{kind}: {name}: it does not link:\n{said}"
        status, _ = run([str(output), *arguments], self.scratch)
        output.unlink()
        how = ("SURVIVED" if status == 0 else "hangs" if status == "hang" else
               "found" if status > 0 else f"found, by signal {-status}")
        seconds = time.monotonic() - begin
        return status not in (0, "hang"), f"{kind}: {name}: {how} ({test}, {seconds:.1f} s)"

    def try_test(self, test):
        program, arguments = TESTS[test]
        output = self.scratch / f"control-{test}"
        status, said = run(self.link_command(program, output, []), self.build)
        if status == 0:
            status, said = run([str(output), *arguments], self.scratch)
        good = status == 0
        return good, f"without a bug: {test} {'passes' if good else 'FAILS: ' + said[-2000:]}"


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__)
    source, build = (pathlib.Path(a).resolve() for a in arguments[:2])
    bugs = [b for b in BUGS if not arguments[2:] or any(n in b[1] for n in arguments[2:])]
    if not bugs:
        sys.exit("planted: no bug has such a name")
    good = 0
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(2) as pool:
        planter = Planter(source, build, pathlib.Path(folder))
        tests = sorted({b[2] for b in bugs})
        work = [pool.submit(planter.try_test, t) for t in tests]
        work += [pool.submit(planter.try_bug, i, b) for i, b in enumerate(bugs)]
        for job in work:
            fine, line = job.result()
            good += fine
            print(line, flush=True)
    print(f"{good - len(tests)} of {len(bugs)} planted bugs found" if good >= len(tests) else "")
    return 0 if good == len(work) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
