/* Prints the option table of a program in Markdown, for docs/OPERATIONS.md. */
#include "common/options.h"
#include "coordinator/config.h"
#include "worker/config.h"

#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    const struct option_program *const programs[] = {&coordinator_options, &worker_options};
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (strcmp(programs[i]->name, argv[1]) == 0) {
            options_print_markdown(programs[i], stdout);
            return 0;
        }
    }
    return 1;
}
