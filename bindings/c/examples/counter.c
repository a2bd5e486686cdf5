/* A job queue with a counter of what was done, in one database: jobs go in by a batch, workers take them one by one, and
 * each job is done and counted in one transaction.
 *
 *     counter DIRECTORY
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "varve.h"

#define JOBS 20

/* Says what failed, and ends. */
static void must(varve_code code, varve_error *error) {
    if (code == VARVE_OK) return;
    fprintf(stderr, "failed (%d): %s\n", code, varve_error_message(error));
    varve_error_free(error);
    exit(1);
}

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

struct shop {
    varve_keyspace *jobs, *done, *counts;
    char last[32]; /* the job that was done last */
    int left;      /* whether there was one */
};

/* Takes the oldest job, does it, counts it: all of that, or none. */
static int do_one(varve_tx *tx, void *arg) {
    struct shop *shop = arg;
    varve_error *error = NULL;
    varve_iter *iter = NULL;
    varve_slice key, value;
    varve_bytes count = {0};
    int code = varve_tx_iter(tx, shop->jobs, NULL, &iter, &error);
    if (code == VARVE_OK) code = varve_iter_next(iter, &key, &value, &error);
    shop->left = code == VARVE_OK && key.data != NULL;
    if (shop->left) {
        snprintf(shop->last, sizeof shop->last, "%.*s", (int)value.len, (const char *)value.data);
        code = varve_tx_put(tx, shop->done, key.data, key.len, value.data, value.len, &error);
        if (code == VARVE_OK) code = varve_tx_delete(tx, shop->jobs, key.data, key.len, &error);
        if (code == VARVE_OK) code = varve_tx_get_for_update(tx, shop->counts, bytes("done"), 4, &count, &error);
        if (code == VARVE_OK) {
            char text[24];
            /* Values end with a zero byte that is not counted, so text can be read as it is. */
            int n = snprintf(text, sizeof text, "%ld", count.data ? strtol((char *)count.data, NULL, 10) + 1 : 1);
            code = varve_tx_put(tx, shop->counts, bytes("done"), 4, bytes(text), (size_t)n, &error);
        }
    }
    varve_bytes_free(&count);
    varve_iter_free(iter);
    if (code != VARVE_OK && !varve_error_is_retryable(error))
        fprintf(stderr, "job: %s\n", varve_error_message(error));
    varve_error_free(error);
    return code; /* a conflict is repeated by varve_transact() */
}

int main(int argc, char **argv) {
    varve_error *error = NULL;
    varve_db *db = NULL;
    if (argc != 2) return fprintf(stderr, "usage: counter DIRECTORY\n"), 2;

    varve_options *options = varve_options_new();
    must(varve_options_set(options, "cache", "16M", &error), error);
    must(varve_open_or_create(argv[1], options, &db, &error), error);
    varve_options_free(options);

    struct shop shop = {0};
    must(varve_keyspace_open_or_create(db, "jobs", &shop.jobs, &error), error);
    must(varve_keyspace_open_or_create(db, "done", &shop.done, &error), error);
    must(varve_keyspace_open_or_create(db, "counts", &shop.counts, &error), error);

    varve_batch *batch = NULL;
    must(varve_batch_new(&batch, &error), error);
    for (int i = 0; i < JOBS; i++) {
        char key[16], job[32];
        int k = snprintf(key, sizeof key, "%08d", i), j = snprintf(job, sizeof job, "letter %d", i);
        must(varve_batch_put(batch, shop.jobs, bytes(key), (size_t)k, bytes(job), (size_t)j, &error), error);
    }
    must(varve_write(db, batch, &error), error); /* durable when this returns */
    varve_batch_free(batch);

    do {
        int code = varve_transact(db, NULL, do_one, &shop, &error);
        must((varve_code)code, error);
    } while (shop.left);
    printf("last: %s\n", shop.last);

    varve_bytes count;
    must(varve_get(shop.counts, bytes("done"), 4, &count, &error), error);
    printf("done: %s\n", (char *)count.data);
    varve_bytes_free(&count);

    varve_iter *iter = NULL;
    varve_slice key, value;
    varve_range latest = {.prefix = bytes("0000001"), .prefix_len = 7, .reverse = true};
    uint64_t rows = 0;
    must(varve_iter_open(shop.done, &latest, &iter, &error), error);
    varve_code code;
    while ((code = varve_iter_next(iter, &key, &value, &error)) == VARVE_OK && key.data) {
        if (rows++ == 0) printf("latest: %.*s\n", (int)value.len, (const char *)value.data);
    }
    must(code, error);
    printf("rows: %" PRIu64 "\n", rows);
    varve_iter_free(iter);

    varve_keyspace_free(shop.jobs);
    varve_keyspace_free(shop.done);
    varve_keyspace_free(shop.counts);
    must(varve_close(db, &error), error);
    varve_db_free(db);
    return 0;
}
