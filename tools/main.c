/* SPDX-License-Identifier: Apache-2.0 */
/* The `headrace` program: one word chooses the tool. */
#include "tools/bench.h"
#include "tools/doctor.h"
#include "tools/run.h"

#include <headrace/headrace.h>

#include <stdio.h>
#include <string.h>

static const char usage_text[] =
    "usage: headrace TOOL [options]\n"
    "\n"
    "  run      read a document with a model: perplexity, questions, continuation\n"
    "  explain  what run with the same options would need and move, and how long it takes\n"
    "  bench    time attention with K/V in memory and partly on disk, without a model\n"
    "  doctor   look at this machine: what headrace will use, and what to fix\n"
    "\n"
    "headrace TOOL --help says more; headrace --version gives the version.\n";

/* 0 when all that was printed has been written. */
static int finish(void)
{
    return fflush(stdout) != 0 || ferror(stdout);
}

int main(int argc, char **argv)
{
    const char *tool = argc > 1 ? argv[1] : "";
    if (strcmp(tool, "run") == 0)
        return hr_tool_run(argc - 1, argv + 1);
    if (strcmp(tool, "explain") == 0)
        return hr_tool_explain(argc - 1, argv + 1);
    if (strcmp(tool, "bench") == 0)
        return hr_tool_bench(argc - 1, argv + 1);
    if (strcmp(tool, "doctor") == 0)
        return hr_tool_doctor(argc - 1, argv + 1);
    if (strcmp(tool, "--version") == 0)
        return printf("headrace %s\n", hr_version()) < 0 || finish();
    if (strcmp(tool, "--help") == 0 || strcmp(tool, "-h") == 0 || strcmp(tool, "help") == 0)
        return fputs(usage_text, stdout) < 0 || finish();
    if (*tool)
        fprintf(stderr, "headrace: \"%.80s\" is no tool\n\n", tool);
    fputs(usage_text, stderr);
    return 2;
}
