/* What programs do wrong, and that each of it is an error or harmless: null pointers, handles used after a close, in
 * wrong order, by two threads, in a forked child; wrong names, wrong values, keys that are too long.
 *
 *     misuse DIRECTORY [nofork]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "varve.h"

static int failures;

#define K(text) (const uint8_t *)(text), strlen(text)

/* The call must come to this code; and say why in words that have this text. */
static void want_(int line, varve_code want, const char *text, varve_code code, varve_error **error) {
    const char *message = varve_error_message(*error);
    if (code != want || varve_error_code(*error) != code || (text && !strstr(message, text))) {
        fprintf(stderr, "line %d: code %d, not %d: %s\n", line, code, want, message);
        failures++;
    }
    varve_error_free(*error);
    *error = NULL;
}
#define WANT(code, text, call) want_(__LINE__, code, text, call, &e)
#define CHECK(what) (what ? 0 : (fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what), failures++))

static varve_db *db;
static varve_keyspace *ks;

static void *write_rows(void *arg) {
    char key[32], value[32];
    for (int i = 0; i < 50; i++) {
        int k = snprintf(key, sizeof key, "%ld/%d", (long)(intptr_t)arg, i), v = snprintf(value, sizeof value, "%d", i);
        varve_code code = varve_put(ks, (uint8_t *)key, (size_t)k, (uint8_t *)value, (size_t)v, NULL);
        if (code != VARVE_OK) return (void *)1;
    }
    return NULL;
}

struct waits {
    varve_tx *tx;
    varve_code code;
};

static void *put_and_wait(void *arg) {
    struct waits *w = arg;
    w->code = varve_tx_put(w->tx, ks, K("hot"), K("2"), NULL);
    return NULL;
}

static int refuse(varve_tx *tx, void *arg) {
    varve_error *e = NULL;
    *(int *)arg += 1;
    WANT(VARVE_OK, NULL, varve_tx_put(tx, ks, K("refused"), K("1"), &e));
    WANT(VARVE_INVALID, "ends it", varve_tx_commit(tx, &e));
    return 1234;
}

static void nulls(void) {
    varve_error *e = NULL;
    varve_bytes b = {0};
    varve_slice s;
    bool flag;
    uint64_t n;
    varve_tx *tx = NULL;
    varve_iter *it = NULL;
    WANT(VARVE_INVALID, "db is a null pointer", varve_open_or_create("x", NULL, NULL, &e));
    WANT(VARVE_INVALID, "path", varve_open(NULL, NULL, &db, &e));
    WANT(VARVE_INVALID, "db", varve_close(NULL, &e));
    WANT(VARVE_INVALID, "db", varve_keyspaces(NULL, &b, &e));
    WANT(VARVE_INVALID, "names", varve_keyspaces(db, NULL, &e));
    WANT(VARVE_INVALID, "name", varve_keyspace_open(db, NULL, &ks, &e));
    WANT(VARVE_INVALID, "keyspace", varve_keyspace_open_or_create(db, "k", NULL, &e));
    WANT(VARVE_INVALID, "keyspace", varve_get(NULL, K("a"), &b, &e));
    WANT(VARVE_INVALID, "key", varve_get(ks, NULL, 3, &b, &e));
    WANT(VARVE_INVALID, "value", varve_get(ks, K("a"), NULL, &e));
    WANT(VARVE_INVALID, "value", varve_put(ks, K("a"), NULL, 1, &e));
    WANT(VARVE_INVALID, "bytes", varve_put(ks, K("a"), (const uint8_t *)"a", SIZE_MAX, &e));
    WANT(VARVE_INVALID, "found", varve_contains(ks, K("a"), NULL, &e));
    WANT(VARVE_INVALID, "swapped", varve_compare_and_swap(ks, K("a"), NULL, 0, K("1"), NULL, &e));
    WANT(VARVE_INVALID, "null", varve_pop_first(ks, NULL, &b, &e));
    WANT(VARVE_INVALID, "len", varve_len(ks, NULL, &e));
    WANT(VARVE_INVALID, "len", varve_len(ks, NULL, &e));
    WANT(VARVE_INVALID, "tx", varve_begin(db, NULL, NULL, &e));
    WANT(VARVE_INVALID, "durability", varve_begin(db, "soon", &tx, &e));
    WANT(VARVE_INVALID, "tx", varve_tx_commit(NULL, &e));
    WANT(VARVE_INVALID, "tx", varve_tx_get(NULL, ks, K("a"), &b, &e));
    WANT(VARVE_INVALID, "iter", varve_iter_open(ks, NULL, NULL, &e));
    WANT(VARVE_INVALID, "iter", varve_iter_next(NULL, &s, &s, &e));
    WANT(VARVE_INVALID, "batch", varve_write(db, NULL, &e));
    WANT(VARVE_INVALID, "options", varve_options_set(NULL, "cache", "1M", &e));
    WANT(VARVE_INVALID, "function", (varve_code)varve_transact(db, NULL, NULL, NULL, &e));
    /* A null place for the error is one that nobody wants. */
    CHECK(varve_put(NULL, K("a"), K("b"), NULL) == VARVE_INVALID);
    CHECK(varve_error_code(NULL) == VARVE_OK && !*varve_error_message(NULL) && !varve_error_is_retryable(NULL));
    varve_error_free(NULL), varve_options_free(NULL), varve_keyspace_free(NULL), varve_tx_free(NULL);
    varve_iter_free(NULL), varve_snapshot_free(NULL), varve_batch_free(NULL), varve_savepoint_free(NULL);
    varve_db_free(NULL), varve_bytes_free(NULL), varve_bytes_free(&b), varve_bytes_free(&b);
    WANT(VARVE_OK, NULL, varve_len(ks, &n, &e));
    WANT(VARVE_OK, NULL, varve_contains(ks, K("a"), &flag, &e));
    CHECK(n == 0 && !flag && tx == NULL && it == NULL);
}

static void wrong_values(void) {
    varve_error *e = NULL;
    varve_options *o = varve_options_new();
    varve_keyspace *other = NULL;
    WANT(VARVE_INVALID, "lock_timeout", varve_options_set(o, "lock_timout", "1s", &e));
    WANT(VARVE_INVALID, "a time with", varve_options_set(o, "lock_timeout", "soon", &e));
    WANT(VARVE_INVALID, "UTF-8", varve_options_set(o, "cache", "\xff", &e));
    varve_options_free(o);
    WANT(VARVE_NOT_FOUND, "create it first", varve_keyspace_open(db, "nowhere", &other, &e));
    WANT(VARVE_EXISTS, NULL, varve_keyspace_create(db, "k", NULL, &other, &e));
    WANT(VARVE_INVALID, "tree, lsm", varve_keyspace_create(db, "x", "heap", &other, &e));
    WANT(VARVE_INVALID, "compression", varve_keyspace_create(db, "x", "lsm:comprission=zstd", &other, &e));
    WANT(VARVE_OK, NULL, varve_keyspace_create(db, "logs", "lsm:compression=zstd", &other, &e));
    varve_keyspace_free(other);
    char *huge = calloc(1, 100000);
    varve_bytes b;
    WANT(VARVE_TOO_LARGE, "key of 100000 bytes", varve_put(ks, (uint8_t *)huge, 100000, K("v"), &e));
    WANT(VARVE_OK, NULL, varve_get(ks, (uint8_t *)huge, 100000, &b, &e));
    CHECK(b.data == NULL);
    free(huge);
    size_t large = 3 << 20;
    uint8_t *value = malloc(large);
    memset(value, 7, large);
    /* The empty key, and a value that must be in a transaction with this cache. */
    varve_tx *tx = NULL;
    WANT(VARVE_TOO_LARGE, "raise the cache", varve_put(ks, K(""), value, large, &e));
    WANT(VARVE_OK, NULL, varve_begin(db, NULL, &tx, &e));
    WANT(VARVE_OK, NULL, varve_tx_put(tx, ks, K(""), value, large, &e));
    WANT(VARVE_OK, NULL, varve_tx_commit(tx, &e));
    varve_tx_free(tx);
    WANT(VARVE_OK, NULL, varve_get(ks, K(""), &b, &e));
    CHECK(b.len == large && b.data[large] == 0 && !memcmp(b.data, value, large));
    varve_bytes_free(&b);
    free(value);
    WANT(VARVE_OK, NULL, varve_put(ks, K("empty"), NULL, 0, &e));
    WANT(VARVE_OK, NULL, varve_get(ks, K("empty"), &b, &e));
    CHECK(b.data != NULL && b.len == 0);
    varve_bytes_free(&b);
    bool swapped;
    WANT(VARVE_OK, NULL, varve_compare_and_swap(ks, K("cas"), K("1"), K("2"), &swapped, &e));
    CHECK(!swapped);
    WANT(VARVE_OK, NULL, varve_compare_and_swap(ks, K("cas"), NULL, 0, K("2"), &swapped, &e));
    CHECK(swapped);
    WANT(VARVE_OK, NULL, varve_compare_and_swap(ks, K("cas"), K("2"), NULL, 0, &swapped, &e));
    CHECK(swapped);
    WANT(VARVE_OK, NULL, varve_delete_range(ks, NULL, &e));
}

static void transactions(void) {
    varve_error *e = NULL;
    varve_tx *a = NULL, *b = NULL;
    varve_bytes v;
    varve_slice key, value;
    int runs = 0;
    /* Ended by commit: everything else says so, the free is still to come. */
    WANT(VARVE_OK, NULL, varve_begin(db, "async", &a, &e));
    for (int i = 0; i < 100; i++) {
        char text[8];
        int n = snprintf(text, sizeof text, "%03d", i);
        WANT(VARVE_OK, NULL, varve_tx_put(a, ks, (uint8_t *)text, (size_t)n, K("x"), &e));
    }
    varve_savepoint *mark = NULL;
    WANT(VARVE_OK, NULL, varve_tx_savepoint(a, &mark, &e));
    WANT(VARVE_OK, NULL, varve_tx_delete_range(a, ks, NULL, NULL, &e));
    WANT(VARVE_OK, NULL, varve_tx_rollback_to(a, mark, &e));
    /* Deleting what an iterator has just given. */
    varve_iter *it = NULL;
    int seen = 0;
    varve_range down = {.from = (const uint8_t *)"010", .from_len = 3, .from_excluded = true, .reverse = true};
    WANT(VARVE_OK, NULL, varve_tx_iter(a, ks, &down, &it, &e));
    while (varve_iter_next(it, &key, &value, &e) == VARVE_OK && key.data) {
        char want[16];
        snprintf(want, sizeof want, "%03d", 99 - seen);
        CHECK(key.len == 3 && !memcmp(key.data, want, 3));
        seen++;
        WANT(VARVE_OK, NULL, varve_tx_delete(a, ks, key.data, key.len, &e));
    }
    CHECK(seen == 89);
    varve_iter_free(it);
    WANT(VARVE_OK, NULL, varve_tx_iter(a, ks, NULL, &it, &e));
    WANT(VARVE_INVALID, NULL, varve_close(db, &e));
    WANT(VARVE_OK, NULL, varve_tx_commit(a, &e));
    WANT(VARVE_CLOSED, "ended", varve_tx_commit(a, &e));
    WANT(VARVE_CLOSED, "ended", varve_tx_put(a, ks, K("a"), K("b"), &e));
    WANT(VARVE_CLOSED, "ended", varve_tx_rollback_to(a, mark, &e));
    WANT(VARVE_CLOSED, "ended", varve_iter_next(it, &key, &value, &e));
    varve_iter_free(it);
    varve_savepoint_free(mark);
    varve_tx_free(a);
    uint64_t n = 0;
    WANT(VARVE_OK, NULL, varve_len(ks, &n, &e));
    CHECK(n == 11);
    /* A function that fails is not repeated, and changes nothing. */
    CHECK(varve_transact(db, NULL, refuse, &runs, &e) == 1234 && runs == 1 && e == NULL);
    WANT(VARVE_OK, NULL, varve_get(ks, K("refused"), &v, &e));
    CHECK(v.data == NULL);
    /* Two transactions on one thread: the second gives up, and says who is in the way. */
    WANT(VARVE_OK, NULL, varve_begin(db, NULL, &a, &e));
    WANT(VARVE_OK, NULL, varve_begin(db, NULL, &b, &e));
    WANT(VARVE_OK, NULL, varve_tx_put(a, ks, K("hot"), K("1"), &e));
    WANT(VARVE_TIMEOUT, "held by", varve_tx_put(b, ks, K("hot"), K("2"), &e));
    /* While one thread waits in a call, another one is refused. */
    struct waits w = {b, VARVE_OK};
    pthread_t thread;
    pthread_create(&thread, NULL, put_and_wait, &w);
    usleep(30000);
    WANT(VARVE_INVALID, "one thread at a time", varve_tx_get(b, ks, K("cold"), &v, &e));
    pthread_join(thread, NULL);
    CHECK(w.code == VARVE_TIMEOUT);
    varve_tx_free(b);
    varve_tx_free(a); /* rolled back */
    WANT(VARVE_OK, NULL, varve_get(ks, K("hot"), &v, &e));
    CHECK(v.data == NULL);
}

static void children(void) {
    varve_error *e = NULL;
    varve_tx *tx = NULL;
    varve_snapshot *snapshot = NULL;
    WANT(VARVE_OK, NULL, varve_begin(db, NULL, &tx, &e));
    WANT(VARVE_OK, NULL, varve_snapshot_open(db, &snapshot, &e));
    pid_t child = fork();
    if (child == 0) {
        varve_bytes v;
        failures = 0;
        alarm(20); /* a child that hangs is killed */
        WANT(VARVE_FORKED, "after the fork", varve_put(ks, K("child"), K("1"), &e));
        WANT(VARVE_FORKED, NULL, varve_snapshot_get(snapshot, ks, K("child"), &v, &e));
        WANT(VARVE_FORKED, NULL, varve_tx_commit(tx, &e));
        WANT(VARVE_FORKED, NULL, varve_close(db, &e));
        varve_tx_free(tx), varve_snapshot_free(snapshot), varve_keyspace_free(ks), varve_db_free(db);
        WANT(VARVE_FORKED, "close before the fork", varve_in_memory(NULL, &db, &e));
        _exit(failures > 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    varve_snapshot_free(snapshot);
    WANT(VARVE_OK, NULL, varve_tx_put(tx, ks, K("parent"), K("1"), &e));
    WANT(VARVE_OK, NULL, varve_tx_commit(tx, &e));
    varve_tx_free(tx);
}

/* A child of a process whose database is closed may use one, here the very same. */
static void child_after_close(const char *path) {
    varve_error *e = NULL;
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        alarm(20);
        WANT(VARVE_OK, NULL, varve_open(path, NULL, &db, &e));
        WANT(VARVE_OK, NULL, varve_keyspace_open_or_create(db, "child", &ks, &e));
        WANT(VARVE_OK, NULL, varve_put(ks, K("child"), K("1"), &e));
        varve_keyspace_free(ks);
        WANT(VARVE_OK, NULL, varve_close(db, &e));
        varve_db_free(db);
        _exit(failures > 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    varve_error *e = NULL;
    varve_db *again = NULL;
    if (argc < 2) return 2;
    varve_options *o = varve_options_new();
    WANT(VARVE_OK, NULL, varve_options_set(o, "cache", "16M", &e));
    WANT(VARVE_OK, NULL, varve_options_set(o, "lock_timeout", "100ms", &e));
    WANT(VARVE_NOT_FOUND, "no database", varve_open(argv[1], o, &db, &e));
    WANT(VARVE_OK, NULL, varve_create(argv[1], o, &db, &e));
    WANT(VARVE_BUSY, NULL, varve_open(argv[1], o, &again, &e));
    WANT(VARVE_BUSY, "in use", varve_create(argv[1], o, &again, &e));
    CHECK(again == NULL);
    WANT(VARVE_OK, NULL, varve_keyspace_open_or_create(db, "k", &ks, &e));

    nulls();
    wrong_values();
    transactions();
    if (argc == 2) children();

    /* Threads. */
    WANT(VARVE_OK, NULL, varve_delete_range(ks, NULL, &e));
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, write_rows, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    uint64_t n;
    WANT(VARVE_OK, NULL, varve_len(ks, &n, &e));
    CHECK(n == 200);

    /* Keyspaces of two databases. */
    varve_keyspace *foreign = NULL;
    WANT(VARVE_OK, NULL, varve_in_memory(o, &again, &e));
    WANT(VARVE_OK, NULL, varve_keyspace_open_or_create(again, "k", &foreign, &e));
    varve_batch *batch = NULL;
    WANT(VARVE_OK, NULL, varve_batch_new(&batch, &e));
    WANT(VARVE_OK, NULL, varve_batch_put(batch, foreign, K("a"), K("b"), &e));
    WANT(VARVE_INVALID, "another database", varve_write(db, batch, &e));
    varve_batch_free(batch);
    varve_db_free(again), again = NULL;
    /* The keyspace keeps its database alive. */
    WANT(VARVE_OK, NULL, varve_put(foreign, K("a"), K("b"), &e));
    varve_keyspace_free(foreign);

    /* An iterator outlives the handle that it came from, and the snapshot, and keeps the database from closing. */
    varve_snapshot *snapshot = NULL;
    varve_iter *it = NULL;
    varve_slice key, value;
    WANT(VARVE_OK, NULL, varve_snapshot_open(db, &snapshot, &e));
    WANT(VARVE_OK, NULL, varve_snapshot_iter(snapshot, ks, NULL, &it, &e));
    varve_snapshot_free(snapshot);
    WANT(VARVE_INVALID, NULL, varve_close(db, &e));
    WANT(VARVE_OK, NULL, varve_delete_range(ks, NULL, &e));
    for (n = 0; varve_iter_next(it, &key, &value, &e) == VARVE_OK && key.data; n++) {}
    CHECK(n == 200);
    WANT(VARVE_OK, NULL, varve_iter_next(it, &key, &value, &e));
    CHECK(key.data == NULL && value.data == NULL);
    varve_iter_free(it);

    WANT(VARVE_OK, NULL, varve_check(db, &e));
    varve_bytes text;
    WANT(VARVE_OK, NULL, varve_metrics(db, &text, &e));
    CHECK(strstr((char *)text.data, "varve_transactions_committed_total"));
    varve_bytes_free(&text);
    WANT(VARVE_OK, NULL, varve_keyspaces(db, &text, &e));
    CHECK(text.len == 7 && !memcmp(text.data, "k\0logs\0", 7));
    varve_bytes_free(&text);

    WANT(VARVE_OK, NULL, varve_close(db, &e));
    WANT(VARVE_CLOSED, NULL, varve_put(ks, K("late"), K("1"), &e));
    WANT(VARVE_CLOSED, NULL, varve_len(ks, &n, &e));
    WANT(VARVE_CLOSED, NULL, varve_iter_open(ks, NULL, &it, &e));
    WANT(VARVE_CLOSED, NULL, varve_sync(db, &e));
    WANT(VARVE_CLOSED, NULL, varve_check(db, &e));
    varve_metrics(db, &text, NULL);
    varve_bytes_free(&text);
    varve_close(db, NULL);
    varve_db_free(db); /* before its keyspace */
    varve_keyspace_free(ks);

    if (argc == 2) child_after_close(argv[1]);
    WANT(VARVE_EXISTS, NULL, varve_create(argv[1], o, &again, &e));
    CHECK(again == NULL);
    WANT(VARVE_OK, NULL, varve_options_set(o, "read_only", "true", &e));
    WANT(VARVE_OK, NULL, varve_open(argv[1], o, &db, &e));
    WANT(VARVE_OK, NULL, varve_keyspace_open(db, "k", &ks, &e));
    WANT(VARVE_READ_ONLY, NULL, varve_put(ks, K("a"), K("1"), &e));
    varve_keyspace_free(ks);
    varve_db_free(db);
    varve_options_free(o);
    return failures > 0;
}
