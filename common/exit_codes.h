/* Exit codes of all programs (sysexits). 0 only after a requested stop. A supervisor does not
 * restart after 64, 66, 77 and 78: another try would end the same way. */
#ifndef TANDEM_COMMON_EXIT_CODES_H
#define TANDEM_COMMON_EXIT_CODES_H

enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_REQUEST_FAILED = 1, /* client: the request ended with an error */
    EXIT_CODE_USAGE = 64,         /* command line or configuration file */
    EXIT_CODE_NO_MODEL = 66,      /* model file missing or damaged */
    EXIT_CODE_UNAVAILABLE = 69,   /* client: no coordinator answers */
    EXIT_CODE_INTERNAL = 70,      /* failed check, hung step */
    EXIT_CODE_SYSTEM = 71,        /* the system lacks something or a system call failed */
    EXIT_CODE_IO = 74,            /* write or sync failed */
    EXIT_CODE_TEMPORARY = 75,     /* fenced, device busy, out of memory at start: try again */
    EXIT_CODE_PERMISSION = 77,    /* path, socket or peer not permitted */
    EXIT_CODE_CONFIGURATION = 78, /* refused by name: model, version, arithmetic, busy directory */
    EXIT_CODE_INTERRUPTED = 130,  /* client: Ctrl-C */
};

#endif
