/* Varve for programs in C: an embeddable transactional store. Made by cbindgen from bindings/c/src; do not edit.
 *
 * Calls. A function that can fail returns a varve_code, VARVE_OK (0) when it did what it says, and takes as its last
 * argument the address of a varve_error * for the text, or null. Results are put where pointers point to; these places
 * are written without being read, so they need not be set before. A null pointer where something must be is
 * VARVE_INVALID, not a crash. A key that is not there is no failure.
 *
 * Keys and values are pointer and length, may have zero bytes, and are only lent for the call. Names, paths and options
 * are C strings in UTF-8.
 *
 * Ownership. What a function puts into a pointer to a handle belongs to the caller, who frees it exactly once with the
 * function named so (varve_db_free, varve_tx_free, ..), in any order: a handle keeps alive what it needs. Freeing null
 * does nothing. To use a handle after it was freed, or to free it twice, is undefined, as with free().
 * varve_close() is no free: after it handles are still there, and calls get VARVE_CLOSED.
 *
 * Threads. Databases, keyspaces and snapshots may be used by any number of threads at once; transactions, iterators,
 * batches and options by one at a time. A handle must not be freed while another thread uses it.
 *
 * Fork. A child process gets VARVE_FORKED from every handle of its parent, and may free them. Where a database was open
 * in the parent, the child can open none either, until it calls exec: fork first, or close first.
 */

#ifndef VARVE_H
#define VARVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What came of a call. The numbers never change their meaning; new ones may be added, so treat one that you do not
// know as a failure.
typedef enum varve_code {
  // It was done.
  VARVE_OK = 0,
  // Another transaction stood in the way: roll back and run the transaction again.
  VARVE_CONFLICT = 1,
  // The thread would wait for its own transaction: make the change through that transaction.
  VARVE_DEADLOCK = 2,
  // A lock was waited for longer than the option `lock_timeout`.
  VARVE_TIMEOUT = 3,
  // The snapshot lost its old values: open a new one.
  VARVE_SNAPSHOT_TOO_OLD = 4,
  // A key, a value or a transaction is too large.
  VARVE_TOO_LARGE = 5,
  // There is no memory for it.
  VARVE_OUT_OF_MEMORY = 6,
  // An argument, an option or a call that makes no sense here; null where there must be something.
  VARVE_INVALID = 7,
  // No such keyspace or database. (A key that is not there is no error.)
  VARVE_NOT_FOUND = 8,
  // There is one already.
  VARVE_EXISTS = 9,
  // Another process, or another handle of this one, has the database open.
  VARVE_BUSY = 10,
  // What was to be changed can only be read.
  VARVE_READ_ONLY = 11,
  // The operating system does not permit it.
  VARVE_PERMISSION = 12,
  // The database was closed, or the transaction has ended.
  VARVE_CLOSED = 13,
  // Bytes on a device are not what was written there; the text names the page.
  VARVE_DAMAGED = 14,
  // Written by a newer release.
  VARVE_VERSION = 15,
  // Files that do not belong together.
  VARVE_MISMATCH = 16,
  // A write that durability rests on failed: reads go on, writes are refused; open the database again.
  VARVE_POISONED = 17,
  // A device is full.
  VARVE_NO_SPACE = 18,
  // A device failed.
  VARVE_IO = 19,
  // A device of the database is not at its place.
  VARVE_DEVICE_MISSING = 20,
  // A backup cannot be made.
  VARVE_BACKUP = 21,
  // The handle is of the process that this one was forked from, or a database was open there.
  VARVE_FORKED = 22,
  // A fault of Varve's own: please report it. Close the database and open it again.
  VARVE_INTERNAL = 23,
} varve_code;

// Writes to any keyspaces of one database, put together first and then made by varve_write(), all of them or none. One
// thread at a time.
typedef struct varve_batch varve_batch;

// An open database. Any number of threads may use it at once.
typedef struct varve_db varve_db;

// Why a call failed. A function that can fail takes the address of a `varve_error *` as its last argument, which may
// be null. When it fails it puts a new error there, which belongs to the caller: free it with varve_error_free(). When
// it succeeds it leaves the place alone. An error is never changed, so any thread may read it.
typedef struct varve_error varve_error;

// Rows in order. One thread at a time uses it; a second one gets VARVE_INVALID. It keeps what it goes over open, the
// database included: free iterators before varve_close().
typedef struct varve_iter varve_iter;

// A keyspace: an ordered map of its own within the database's transactions. Any number of threads may use it at once.
// Its calls that write are transactions of their own: within a transaction use the calls that take a `varve_tx`.
typedef struct varve_keyspace varve_keyspace;

// How a database is opened. One thread at a time.
typedef struct varve_options varve_options;

// A state of a transaction, to return to. Valid until the transaction ends.
typedef struct varve_savepoint varve_savepoint;

// A view of the whole database as of one moment, which takes no locks. Any number of threads may use it at once.
typedef struct varve_snapshot varve_snapshot;

// An open transaction, serializable against all others. One thread at a time uses it; a second one gets VARVE_INVALID.
// It may move from thread to thread.
typedef struct varve_tx varve_tx;

// Bytes that the library allocated. They belong to the caller, who frees them with varve_bytes_free(). After the last
// byte there is a zero byte that `len` does not count, so text can be used as a C string.
typedef struct varve_bytes {
  // The bytes; null: there is nothing (no such key). An empty value is not null.
  uint8_t *data;
  // How many.
  size_t len;
} varve_bytes;

// A range of keys. Zeroed, it has every key: `varve_range r = {0};`. Name what you need:
// `(varve_range){ .from = key, .from_len = n, .reverse = true }`. It and its keys are only lent for the call.
typedef struct varve_range {
  // The lowest key, which belongs to the range; null with length 0: from the first one on.
  const uint8_t *from;
  // Its length.
  size_t from_len;
  // The highest key, which does not belong to the range; null with length 0: to the last one.
  const uint8_t *to;
  // Its length.
  size_t to_len;
  // The keys that begin with this, instead of from and to; null with length 0: no matter.
  const uint8_t *prefix;
  // Its length.
  size_t prefix_len;
  // The key `from` does not belong to the range.
  bool from_excluded;
  // The key `to` does belong to the range.
  bool to_included;
  // Descending.
  bool reverse;
} varve_range;

// What varve_transact() runs. It returns 0 (VARVE_OK) to commit; the code of a call that failed, or any other number,
// to roll back. The transaction belongs to varve_transact(): it is neither committed nor freed here, and not used
// afterwards. The function must return: no longjmp and no C++ exception may leave it.
typedef int (*varve_transact_fn)(struct varve_tx *tx, void *arg);

// Bytes that the library lends: valid as long as the function says that lent them. Never to be freed.
typedef struct varve_slice {
  // The bytes; null: there is nothing.
  const uint8_t *data;
  // How many.
  size_t len;
} varve_slice;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Frees bytes that the library allocated, and sets them to nothing: to free them twice through the same variable does
// nothing. Null, and bytes that are nothing, are left alone.
void varve_bytes_free(struct varve_bytes *bytes);

// Its code, which is what the call returned. Of null: VARVE_OK.
enum varve_code varve_error_code(const struct varve_error *error);

// What happened, where, and what helps, in UTF-8. It lives as long as the error. Of null: the empty text.
const char *varve_error_message(const struct varve_error *error);

// Whether the same transaction, run again from its beginning, may succeed.
bool varve_error_is_retryable(const struct varve_error *error);

// Frees an error. Null is left alone.
void varve_error_free(struct varve_error *error);

// Options with their defaults; free them with varve_options_free(). One set may open any number of databases.
struct varve_options *varve_options_new(void);

// Sets an option by its name, as `docs/options.md` lists them: "cache" to "64M", "durability" to "async",
// "pool.replacement" to "2q". VARVE_INVALID for a name or a value that there is not; the error says what there is.
enum varve_code varve_options_set(struct varve_options *options,
                                  const char *name,
                                  const char *value,
                                  struct varve_error **error);

// Frees options. Null is left alone.
void varve_options_free(struct varve_options *options);

// Opens the database in a directory, or creates one there. `options` may be null: the defaults; they stay the
// caller's. VARVE_BUSY when it is open already, here or in another process. The handle put into `db` is freed with
// varve_db_free(), after everything else that was made with it or before: what is left keeps the database open.
enum varve_code varve_open_or_create(const char *path,
                                     const struct varve_options *options,
                                     struct varve_db **db,
                                     struct varve_error **error);

// As varve_open_or_create(), but VARVE_NOT_FOUND when there is no database.
enum varve_code varve_open(const char *path,
                           const struct varve_options *options,
                           struct varve_db **db,
                           struct varve_error **error);

// As varve_open_or_create(), but VARVE_EXISTS when there is a database.
enum varve_code varve_create(const char *path,
                             const struct varve_options *options,
                             struct varve_db **db,
                             struct varve_error **error);

// A new database in memory, which goes with its last handle.
enum varve_code varve_in_memory(const struct varve_options *options, struct varve_db **db, struct varve_error **error);

// Writes what is dirty, marks the database closed and lets go of its directory. Every handle made with it gets
// VARVE_CLOSED from here on, and is still to be freed, `db` too. VARVE_INVALID while transactions, snapshots or
// iterators are open: nothing was done, the database goes on. VARVE_CLOSED when it was closed before.
enum varve_code varve_close(const struct varve_db *db, struct varve_error **error);

// Frees a handle. When it is the last one of a database that was not closed, it waits until everything that was
// acknowledged is durable; nothing is lost, but the next opening has to recover. Null is left alone.
void varve_db_free(struct varve_db *db);

// Makes everything durable that was acknowledged so far, whatever its durability.
enum varve_code varve_sync(const struct varve_db *db, struct varve_error **error);

// Returns when everything up to a place in the log is durable, as varve_tx_commit_ticket() gives it.
enum varve_code varve_wait_durable(const struct varve_db *db, uint64_t lsn, struct varve_error **error);

// Writes every page that is dirty now, so that recovery has nothing older to redo.
enum varve_code varve_checkpoint(const struct varve_db *db, struct varve_error **error);

// Reads the whole database. VARVE_DAMAGED when something is wrong with it: the error names every page concerned.
enum varve_code varve_check(const struct varve_db *db, struct varve_error **error);

// Writes a backup to a new file while the database is in use. VARVE_EXISTS when the file is there. `varve restore`
// makes a database of it.
enum varve_code varve_backup(const struct varve_db *db, const char *path, struct varve_error **error);

// Counters and sizes since the opening, as text in the format of Prometheus.
enum varve_code varve_metrics(const struct varve_db *db, struct varve_bytes *text, struct varve_error **error);

// The release of the library, "1.2.3".
const char *varve_version(void);

// Opens a keyspace by its name. VARVE_NOT_FOUND when there is none. Free the handle with varve_keyspace_free().
enum varve_code varve_keyspace_open(const struct varve_db *db,
                                    const char *name,
                                    struct varve_keyspace **keyspace,
                                    struct varve_error **error);

// Makes a keyspace, durably. VARVE_EXISTS when there is one of that name. `kind` is null or "tree" for a B+-tree;
// "lsm", or "lsm:NAME=VALUE,.." with options (docs/lsm.md), for what is mostly written.
enum varve_code varve_keyspace_create(const struct varve_db *db,
                                      const char *name,
                                      const char *kind_or_null,
                                      struct varve_keyspace **keyspace,
                                      struct varve_error **error);

// Opens a keyspace by its name, or makes it: a B+-tree.
enum varve_code varve_keyspace_open_or_create(const struct varve_db *db,
                                              const char *name,
                                              struct varve_keyspace **keyspace,
                                              struct varve_error **error);

// Frees a handle; the keyspace stays. Null is left alone.
void varve_keyspace_free(struct varve_keyspace *keyspace);

// Drops a keyspace and everything in it, durably. VARVE_NOT_FOUND when there is none.
enum varve_code varve_keyspace_drop(const struct varve_db *db, const char *name, struct varve_error **error);

// Gives a keyspace another name, durably. Handles go on with it.
enum varve_code varve_keyspace_rename(const struct varve_db *db,
                                      const char *from,
                                      const char *to,
                                      struct varve_error **error);

// The names of all keyspaces, ascending, each followed by a zero byte.
enum varve_code varve_keyspaces(const struct varve_db *db, struct varve_bytes *names, struct varve_error **error);

// The value of a key, as last committed; nothing (null data) when there is no such key, which is no failure. Free it
// with varve_bytes_free().
enum varve_code varve_get(const struct varve_keyspace *keyspace,
                          const uint8_t *key,
                          size_t key_len,
                          struct varve_bytes *value,
                          struct varve_error **error);

// Sets the value of a key, with the database's default durability. VARVE_TOO_LARGE for a key of more than 2 KB (1 KB
// with pages of 4 KB), and for a value of more than a quarter of the cache: put such a one in a transaction.
enum varve_code varve_put(const struct varve_keyspace *keyspace,
                          const uint8_t *key,
                          size_t key_len,
                          const uint8_t *value,
                          size_t value_len,
                          struct varve_error **error);

// Removes a key. Puts into `existed`, unless that is null, whether it was there.
enum varve_code varve_delete(const struct varve_keyspace *keyspace,
                             const uint8_t *key,
                             size_t key_len,
                             bool *existed,
                             struct varve_error **error);

// Removes every key of a range, whatever their number, as one change. A null range has every key.
enum varve_code varve_delete_range(const struct varve_keyspace *keyspace,
                                   const struct varve_range *range,
                                   struct varve_error **error);

// Whether a key is there.
enum varve_code varve_contains(const struct varve_keyspace *keyspace,
                               const uint8_t *key,
                               size_t key_len,
                               bool *found,
                               struct varve_error **error);

// Sets the value of a key unless it is there; puts into `inserted`, unless that is null, whether it did.
enum varve_code varve_insert_if_absent(const struct varve_keyspace *keyspace,
                                       const uint8_t *key,
                                       size_t key_len,
                                       const uint8_t *value,
                                       size_t value_len,
                                       bool *inserted,
                                       struct varve_error **error);

// Sets a key from the value `from` to the value `to`. A null pointer with length 0 means that the key is not there, as
// `from`, or is to be removed, as `to`. Puts into `swapped` whether the key had the value `from`; if not, nothing was
// changed.
enum varve_code varve_compare_and_swap(const struct varve_keyspace *keyspace,
                                       const uint8_t *key,
                                       size_t key_len,
                                       const uint8_t *from,
                                       size_t from_len,
                                       const uint8_t *to,
                                       size_t to_len,
                                       bool *swapped,
                                       struct varve_error **error);

// Removes the row with the lowest key and gives it to the caller: key and value are to be freed with
// varve_bytes_free(). Nothing (null data) when there is no row. As a queue: each row goes to one caller.
enum varve_code varve_pop_first(const struct varve_keyspace *keyspace,
                                struct varve_bytes *key,
                                struct varve_bytes *value,
                                struct varve_error **error);

// As varve_pop_first(), the row with the highest key.
enum varve_code varve_pop_last(const struct varve_keyspace *keyspace,
                               struct varve_bytes *key,
                               struct varve_bytes *value,
                               struct varve_error **error);

// The number of rows at this moment. Counts them: reads every key, but no long value.
enum varve_code varve_len(const struct varve_keyspace *keyspace, uint64_t *len, struct varve_error **error);

// Opens a snapshot of the present state. Free it with varve_snapshot_free() when it is not needed any more: open
// snapshots make the database keep old values.
enum varve_code varve_snapshot_open(const struct varve_db *db,
                                    struct varve_snapshot **snapshot,
                                    struct varve_error **error);

// As varve_get(), as of the snapshot.
enum varve_code varve_snapshot_get(const struct varve_snapshot *snapshot,
                                   const struct varve_keyspace *keyspace,
                                   const uint8_t *key,
                                   size_t key_len,
                                   struct varve_bytes *value,
                                   struct varve_error **error);

// Frees a snapshot. Iterators over it go on. Null is left alone.
void varve_snapshot_free(struct varve_snapshot *snapshot);

// Begins a transaction. `durability` is "sync", "async", "none", or null: as the database was opened. End it with
// varve_tx_commit(), and free it with varve_tx_free() in any case.
enum varve_code varve_begin(const struct varve_db *db,
                            const char *durability,
                            struct varve_tx **tx,
                            struct varve_error **error);

// As varve_get(), with what the transaction wrote. Locks the key against writers.
enum varve_code varve_tx_get(const struct varve_tx *tx,
                             const struct varve_keyspace *keyspace,
                             const uint8_t *key,
                             size_t key_len,
                             struct varve_bytes *value,
                             struct varve_error **error);

// As varve_tx_get(), for a key that will be written: two transactions that read and then write it wait for each other
// instead of one failing.
enum varve_code varve_tx_get_for_update(const struct varve_tx *tx,
                                        const struct varve_keyspace *keyspace,
                                        const uint8_t *key,
                                        size_t key_len,
                                        struct varve_bytes *value,
                                        struct varve_error **error);

// Sets the value of a key, of any length, when the transaction commits.
enum varve_code varve_tx_put(const struct varve_tx *tx,
                             const struct varve_keyspace *keyspace,
                             const uint8_t *key,
                             size_t key_len,
                             const uint8_t *value,
                             size_t value_len,
                             struct varve_error **error);

// Removes a key, if it is there, when the transaction commits.
enum varve_code varve_tx_delete(const struct varve_tx *tx,
                                const struct varve_keyspace *keyspace,
                                const uint8_t *key,
                                size_t key_len,
                                struct varve_error **error);

// Removes every key of a range when the transaction commits; puts their number into `count`, unless that is null. A
// null range has every key.
enum varve_code varve_tx_delete_range(const struct varve_tx *tx,
                                      const struct varve_keyspace *keyspace,
                                      const struct varve_range *range,
                                      uint64_t *count,
                                      struct varve_error **error);

// Marks the present state, to return to it with varve_tx_rollback_to(). Free it with varve_savepoint_free().
enum varve_code varve_tx_savepoint(const struct varve_tx *tx,
                                   struct varve_savepoint **savepoint,
                                   struct varve_error **error);

// Undoes what was written since the savepoint, which can be used again. Locks stay.
enum varve_code varve_tx_rollback_to(const struct varve_tx *tx,
                                     const struct varve_savepoint *savepoint,
                                     struct varve_error **error);

// Frees a savepoint; the transaction goes on. Null is left alone.
void varve_savepoint_free(struct varve_savepoint *savepoint);

// Makes the changes take effect, all of them or (with an error) none, and returns when they are as durable as asked
// for. The transaction has ended then, in both cases: further calls get VARVE_CLOSED. After VARVE_POISONED and
// VARVE_IO it is known when the database is opened again whether the changes are there.
enum varve_code varve_tx_commit(const struct varve_tx *tx, struct varve_error **error);

// As varve_tx_commit(), but returns as soon as the changes have taken effect. They survive a power cut when
// varve_wait_durable() returns for `lsn`.
enum varve_code varve_tx_commit_ticket(const struct varve_tx *tx, uint64_t *lsn, struct varve_error **error);

// Ends the transaction without changing anything.
enum varve_code varve_tx_rollback(const struct varve_tx *tx, struct varve_error **error);

// Frees a transaction; one that has not ended is rolled back, unless iterators over it are left: then with the last of
// them. Null is left alone. Not for a transaction that varve_transact() lends.
void varve_tx_free(struct varve_tx *tx);

// Runs `function` in a transaction with `arg`, and commits it; runs it again, after a wait that grows, as long as
// other transactions stand in the way. So `function` must not do anything outside the database that should not be done
// twice. Returns the code of the commit, or the number that `function` returned to roll back: then there is no error
// object but the one that `function` may have got itself.
int varve_transact(const struct varve_db *db,
                   const char *durability,
                   varve_transact_fn function,
                   void *arg,
                   struct varve_error **error);

// The rows of a range as of the moment of the call. A null range has every row. Free it with varve_iter_free().
enum varve_code varve_iter_open(const struct varve_keyspace *keyspace,
                                const struct varve_range *range,
                                struct varve_iter **iter,
                                struct varve_error **error);

// As varve_iter_open(), as of the snapshot, which may be freed meanwhile.
enum varve_code varve_snapshot_iter(const struct varve_snapshot *snapshot,
                                    const struct varve_keyspace *keyspace,
                                    const struct varve_range *range,
                                    struct varve_iter **iter,
                                    struct varve_error **error);

// As varve_iter_open(), with what the transaction wrote, and locked against other writers as far as it was read, and a
// little beyond. The transaction may write meanwhile: some rows (up to 1024, or 256 KB) are read ahead and do not show
// it. When the transaction ends, the iterator still has those, and then gets VARVE_CLOSED.
enum varve_code varve_tx_iter(const struct varve_tx *tx,
                              const struct varve_keyspace *keyspace,
                              const struct varve_range *range,
                              struct varve_iter **iter,
                              struct varve_error **error);

// Lends the next row. Key and value are valid until the next call with this iterator. At the end, and after it, both
// are nothing (null data), which is no failure:
// `while (varve_iter_next(iter, &key, &value, &error) == VARVE_OK && key.data) ...`
enum varve_code varve_iter_next(const struct varve_iter *iter,
                                struct varve_slice *key,
                                struct varve_slice *value,
                                struct varve_error **error);

// Frees an iterator, at its end or before. Null is left alone.
void varve_iter_free(struct varve_iter *iter);

// An empty batch. Free it with varve_batch_free().
enum varve_code varve_batch_new(struct varve_batch **batch, struct varve_error **error);

// Adds: set the value of a key. Key and value are copied. Of several writes of one key the last one counts.
enum varve_code varve_batch_put(const struct varve_batch *batch,
                                const struct varve_keyspace *keyspace,
                                const uint8_t *key,
                                size_t key_len,
                                const uint8_t *value,
                                size_t value_len,
                                struct varve_error **error);

// Adds: remove a key if it is there.
enum varve_code varve_batch_delete(const struct varve_batch *batch,
                                   const struct varve_keyspace *keyspace,
                                   const uint8_t *key,
                                   size_t key_len,
                                   struct varve_error **error);

// Forgets all writes, to be filled again.
enum varve_code varve_batch_clear(const struct varve_batch *batch, struct varve_error **error);

// Makes the writes of a batch, all of them or none, with the database's default durability. The batch stays as it is:
// clear it to use it for others.
enum varve_code varve_write(const struct varve_db *db, const struct varve_batch *batch, struct varve_error **error);

// Frees a batch. Null is left alone.
void varve_batch_free(struct varve_batch *batch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VARVE_H */
