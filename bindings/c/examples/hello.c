#include <stdio.h>
#include <varve.h>

int main(int argc, char **argv) {
    varve_error *error = NULL;
    varve_db *db = NULL;
    varve_keyspace *accounts = NULL;
    varve_bytes balance = {0};
    if (varve_open_or_create(argc > 1 ? argv[1] : "bank", NULL, &db, &error) == VARVE_OK &&
        varve_keyspace_open_or_create(db, "accounts", &accounts, &error) == VARVE_OK &&
        varve_put(accounts, (const uint8_t *)"alice", 5, (const uint8_t *)"10", 2, &error) == VARVE_OK &&
        varve_get(accounts, (const uint8_t *)"alice", 5, &balance, &error) == VARVE_OK)
        printf("alice has %s\n", (char *)balance.data); /* durable since varve_put() returned */
    if (!error) varve_close(db, &error);
    if (error) fprintf(stderr, "%s\n", varve_error_message(error));
    varve_bytes_free(&balance);
    varve_keyspace_free(accounts);
    varve_db_free(db);
    return (int)varve_error_code(error);
}
