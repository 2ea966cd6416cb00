/* The option table: every source, every kind, every mistake. */
#include "common/options.h"

#include "common/exit_codes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct config {
    bool verbose;
    char path[OPTION_TEXT_BYTES];
    uint32_t color;
    uint64_t count;
    uint64_t pool;
    uint64_t wait;
};

enum { RED = 7, BLUE = 9 };

static const struct option_choice COLORS[] = {{"red", RED}, {"blue", BLUE}, {NULL, 0}};

static const struct option OPTIONS[] = {
    {.name = "verbose",
     .kind = OPTION_FLAG,
     .offset = offsetof(struct config, verbose),
     .help = "Say more"},
    {.name = "test-path",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct config, path),
     .help = "Where"},
    {.name = "color",
     .kind = OPTION_CHOICE,
     .offset = offsetof(struct config, color),
     .standard = "red",
     .choices = COLORS,
     .help = "Which"},
    {.name = "count",
     .kind = OPTION_COUNT,
     .offset = offsetof(struct config, count),
     .standard = "5",
     .minimum = 1,
     .maximum = 100,
     .help = "How many"},
    {.name = "pool",
     .kind = OPTION_BYTES,
     .offset = offsetof(struct config, pool),
     .standard = "2G",
     .minimum = 1024,
     .maximum = UINT64_MAX,
     .help = "How large"},
    {.name = "wait",
     .kind = OPTION_MILLISECONDS,
     .offset = offsetof(struct config, wait),
     .standard = "1500ms",
     .maximum = 3600000,
     .help = "How long"},
};

static const struct option_program PROGRAM = {.name = "tandem-test",
                                              .summary = "a test",
                                              .options = OPTIONS,
                                              .count = sizeof OPTIONS / sizeof OPTIONS[0]};

enum { ARGUMENTS_MAX = 8, FILE_PATH_BYTES = 64 };

static enum status read_options(struct config *config, struct options_result *result,
                                struct reason *why, const char *const *words)
{
    char *argv[ARGUMENTS_MAX + 2] = {(char *)(uintptr_t) "tandem-test"};
    int argc = 1;
    for (; words[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    struct options_input input = {.program = &PROGRAM,
                                  .argc = argc,
                                  .argv = argv,
                                  .config = config,
                                  .config_bytes = sizeof *config};
    return options_read(&input, result, reason_init(why));
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void write_file(char *path, const char *content)
{
    snprintf(path, FILE_PATH_BYTES, "/tmp/tandem-options-XXXXXX");
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, content, strlen(content)), (int)strlen(content));
    close(descriptor);
}

static void defaults_are_taken_where_nothing_is_said(void **state)
{
    (void)state;
    struct config config;
    struct options_result result;
    struct reason why;
    assert_int_equal(read_options(&config, &result, &why, (const char *const[]){NULL}), STATUS_OK);
    assert_int_equal(result.action, OPTIONS_RUN);
    assert_false(config.verbose);
    assert_string_equal(config.path, "");
    assert_int_equal(config.color, RED);
    assert_int_equal(config.count, 5);
    assert_int_equal(config.pool, UINT64_C(2) << 30);
    assert_int_equal(config.wait, 1500);
}

static void command_beats_file_beats_environment(void **state)
{
    (void)state;
    struct config config;
    struct options_result result;
    struct reason why;
    char path[FILE_PATH_BYTES];
    write_file(path, "# a comment\n\ncount = 20\npool = 3 MiB ; inline comment\nwait=2s\n");
    setenv("TANDEM_COUNT", "10", 1);
    setenv("TANDEM_TEST_PATH", "/from/environment", 1);
    enum status with_space = read_options(&config, &result, &why, WORDS("--config", path));
    assert_int_equal(with_space, STATUS_INVALID); /* "3 MiB": no space before the unit */
    unlink(path);

    write_file(path, "# a comment\n\ncount = 20\npool = 3MiB ; inline comment\nwait=2s\n");
    assert_int_equal(read_options(&config, &result, &why, WORDS("--config", path, "--wait=3s")),
                     STATUS_OK);
    assert_int_equal(config.count, 20);
    assert_int_equal(config.pool, 3 << 20);
    assert_int_equal(config.wait, 3000);
    assert_string_equal(config.path, "/from/environment");
    assert_int_equal(result.source[0], OPTION_FROM_DEFAULT);
    assert_int_equal(result.source[1], OPTION_FROM_ENVIRONMENT);
    assert_int_equal(result.source[3], OPTION_FROM_FILE);
    assert_int_equal(result.source[5], OPTION_FROM_COMMAND);
    unsetenv("TANDEM_COUNT");
    unsetenv("TANDEM_TEST_PATH");
    unlink(path);
}

static void every_form_of_a_value_is_read(void **state)
{
    (void)state;
    struct config config;
    struct options_result result;
    struct reason why;
    assert_int_equal(read_options(&config, &result, &why,
                                  WORDS("--verbose", "--pool", "4k", "--color", "blue", "--wait",
                                        "2min", "--check")),
                     STATUS_OK);
    assert_true(config.verbose);
    assert_int_equal(config.pool, 4096);
    assert_int_equal(config.color, BLUE);
    assert_int_equal(config.wait, 120000);
    assert_int_equal(result.action, OPTIONS_CHECK);
    assert_int_equal(read_options(&config, &result, &why, WORDS("--verbose=off")), STATUS_OK);
    assert_false(config.verbose);
    assert_int_equal(read_options(&config, &result, &why, WORDS("--verbose", "yes", "--count=7")),
                     STATUS_OK);
    assert_true(config.verbose);
    assert_int_equal(config.count, 7);
    assert_int_equal(read_options(&config, &result, &why, WORDS("--verbose", "no")), STATUS_OK);
    assert_false(config.verbose);
    assert_int_equal(read_options(&config, &result, &why, WORDS("--pool=18446744073709551615")),
                     STATUS_OK);
    assert_true(config.pool == UINT64_MAX);
}

static void mistakes_name_option_value_and_bound(void **state)
{
    (void)state;
    static const struct {
        const char *words[3];
        const char *says[3];
    } CASES[] = {
        {{"--count", "0"}, {"--count", "\"0\"", "1 to 100"}},
        {{"--count", "101"}, {"--count", "\"101\"", "1 to 100"}},
        {{"--count", "-1"}, {"--count", "\"-1\"", "1 to 100"}},
        {{"--count", "5K"}, {"--count", "\"5K\"", "1 to 100"}},
        {{"--count", ""}, {"--count", "\"\"", "1 to 100"}},
        {{"--count", "99999999999999999999999"}, {"--count", "out of range", "1 to 100"}},
        {{"--pool", "1000"}, {"--pool", "\"1000\"", "1K or more"}},
        {{"--pool", "18446744073709551615K"}, {"--pool", "out of range", "suffixes K, M, G"}},
        {{"--pool", "4X"}, {"--pool", "\"4X\"", "suffixes K, M, G"}},
        {{"--wait", "2h"}, {"--wait", "\"2h\"", "s or min"}},
        {{"--color", "green"}, {"--color", "\"green\"", "red blue"}},
        {{"--verbose=maybe"}, {"--verbose", "\"maybe\"", "yes or no"}},
        {{"--verbose", "maybe"}, {"--verbose", "\"maybe\"", "yes or no"}},
        {{"--test-path", "a\nb"}, {"--test-path", "\"a\\x0ab\"", "control character"}},
        {{"--config", "a\x7f"}, {"--config", "control character", "rename"}},
        {{"--count"}, {"--count", "needs", "value"}},
        {{"--colour", "red"}, {"--colour", "unknown option", "--help"}},
        {{"count"}, {"\"count\"", "unexpected argument", "--help"}},
        {{"--"}, {"\"--\"", "unexpected argument", "--help"}},
        {{"--check=yes"}, {"--check", "takes no", "value"}},
        {{"--config", "/nonexistent/x.conf"}, {"--config", "/nonexistent/x.conf", "readable"}},
        {{"--config="}, {"--config", "0 bytes", "1 to"}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct config config;
        struct options_result result;
        struct reason why;
        assert_int_equal(read_options(&config, &result, &why, CASES[i].words), STATUS_INVALID);
        for (int j = 0; j < 3; j++)
            if (strstr(why.storage, CASES[i].says[j]) == NULL)
                fail_msg("case %zu: %s is not in: %s", i, CASES[i].says[j], why.storage);
    }
}

static void mistakes_in_a_file_name_the_line(void **state)
{
    (void)state;
    char longest[3000];
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "test-path=", 10);
    longest[sizeof longest - 2] = '\n';
    longest[sizeof longest - 1] = '\0';
    const struct {
        const char *content, *says, *place;
    } cases[] = {
        {"count = 5\ncuont = 6\n", "unknown option \"cuont\"", ":2:"},
        {"count = 500\n", "\"500\" is out of range", ":1: count"},
        {"[worker]\ncount = 5\n", "sections are not used", ":2:"},
        {"count = 5\nnonsense\n", "expected \"name = value\"", ":2:"},
        {longest, "longer than", ":1:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config config;
        struct options_result result;
        struct reason why;
        char path[FILE_PATH_BYTES];
        write_file(path, cases[i].content);
        assert_int_equal(read_options(&config, &result, &why, WORDS("--config", path)),
                         STATUS_INVALID);
        unlink(path);
        if (strstr(why.storage, cases[i].says) == NULL ||
            strstr(why.storage, cases[i].place) == NULL)
            fail_msg("case %zu says: %s", i, why.storage);
    }
}

/* The rest of such a line would be lost without a word; /dev/zero would be read for ever. */
static void a_file_that_is_no_text_is_refused(void **state)
{
    (void)state;
    static const char content[] = "count = 5\ncount = 6\0 or 7\n";
    struct config config;
    struct options_result result;
    struct reason why;
    char path[FILE_PATH_BYTES];
    write_file(path, "");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, sizeof content - 1, file), sizeof content - 1);
    assert_int_equal(fclose(file), 0);
    const char *paths[] = {path, "/dev/zero", "/"};
    const char *places[] = {":2: a zero byte", ":1: a zero byte", "cannot read \"/\""};
    for (size_t i = 0; i < 3; i++) {
        enum status status = read_options(&config, &result, &why, WORDS("--config", paths[i]));
        assert_int_equal(status, STATUS_INVALID);
        assert_non_null(strstr(why.storage, places[i]));
    }
    unlink(path);
}

static void a_mistake_in_the_environment_names_the_variable(void **state)
{
    (void)state;
    struct config config;
    struct options_result result;
    struct reason why;
    setenv("TANDEM_WAIT", "soon", 1);
    assert_int_equal(read_options(&config, &result, &why, (const char *const[]){NULL}),
                     STATUS_INVALID);
    assert_non_null(strstr(why.storage, "TANDEM_WAIT"));
    unsetenv("TANDEM_WAIT");
}

static void help_wins_over_mistakes(void **state)
{
    (void)state;
    struct config config;
    struct options_result result;
    struct reason why;
    assert_int_equal(read_options(&config, &result, &why, WORDS("--count", "0", "--help")),
                     STATUS_OK);
    assert_int_equal(result.action, OPTIONS_HELP);
    assert_int_equal(read_options(&config, &result, &why, WORDS("--bogus", "--version")),
                     STATUS_OK);
    assert_int_equal(result.action, OPTIONS_VERSION);
}

static void the_sample_is_read_back_as_the_defaults(void **state)
{
    (void)state;
    char *sample = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&sample, &bytes);
    options_print_sample(&PROGRAM, memory);
    fclose(memory);
    /* Every `#name = value` line becomes a setting; prose lines begin with "# ". */
    for (char *c = sample; *c != '\0'; c++)
        if (*c == '#' && c[1] != ' ')
            *c = ' ';
    char path[FILE_PATH_BYTES];
    write_file(path, sample);
    free(sample);
    struct config config, defaults;
    struct options_result result;
    struct reason why;
    assert_int_equal(read_options(&defaults, &result, &why, (const char *const[]){NULL}),
                     STATUS_OK);
    if (read_options(&config, &result, &why, WORDS("--config", path)) != STATUS_OK)
        fail_msg("%s", why.storage);
    unlink(path);
    assert_memory_equal(&config, &defaults, sizeof config);
    for (size_t i = 0; i < PROGRAM.count; i++)
        assert_int_equal(result.source[i], OPTION_FROM_FILE);
}

static void the_effective_listing_shows_value_and_source(void **state)
{
    (void)state;
    struct config config;
    struct options_result result;
    struct reason why;
    assert_int_equal(read_options(&config, &result, &why, WORDS("--pool", "3072K")), STATUS_OK);
    char *listing = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&listing, &bytes);
    options_print_effective(&PROGRAM, &config, &result, memory);
    options_print_help(&PROGRAM, memory);
    options_print_markdown(&PROGRAM, memory);
    fclose(memory);
    assert_non_null(strstr(listing, "pool = 3M  (command line)"));
    assert_non_null(strstr(listing, "color = red  (default)"));
    assert_non_null(strstr(listing, "Which (red | blue; default red)"));
    assert_non_null(strstr(listing, "| `--color` | red | red , blue | Which |"));
    free(listing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_taken_where_nothing_is_said),
        cmocka_unit_test(command_beats_file_beats_environment),
        cmocka_unit_test(every_form_of_a_value_is_read),
        cmocka_unit_test(mistakes_name_option_value_and_bound),
        cmocka_unit_test(mistakes_in_a_file_name_the_line),
        cmocka_unit_test(a_file_that_is_no_text_is_refused),
        cmocka_unit_test(a_mistake_in_the_environment_names_the_variable),
        cmocka_unit_test(help_wins_over_mistakes),
        cmocka_unit_test(the_sample_is_read_back_as_the_defaults),
        cmocka_unit_test(the_effective_listing_shows_value_and_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
