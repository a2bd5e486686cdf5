//! The list of metrics.

use super::{Family, Kind};

macro_rules! families {
    ($($id:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) static $id: Family = Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*

        /// Every metric there is, in the order in which they are told. Those of update sizes, of the array and of the
        /// tier are told where there is one.
        pub static FAMILIES: &[&Family] = &[$(&$id),*];
    };
}

families! {
    BUILD Gauge "varve_build_info" ["version"] "Always 1; the label tells the release.";
    OPEN Gauge "varve_open_seconds" [] "Time since the database was opened.";
    PAGE_SIZE Gauge "varve_page_size_bytes" [] "Bytes of a page.";
    PAGES Gauge "varve_pages" ["state"] "Pages of the data device: allocated, free.";

    COMMITTED Counter "varve_transactions_committed_total" [] "Transactions committed that wrote something, single operations included.";
    ROLLED_BACK Counter "varve_transactions_rolled_back_total" [] "Transactions rolled back or dropped, those in conflict included.";
    CONFLICTS Counter "varve_transaction_conflicts_total" [] "Transactions that had to give way to another.";
    RETRIES Counter "varve_transaction_retries_total" [] "Attempts that `transact` repeated.";
    RELATCHED Counter "varve_transaction_relatches_total" [] "Commits that found a leaf changed between pinning and latching it.";
    LOCK_WAITS Counter "varve_lock_waits_total" [] "Waits for key and interval locks.";
    LOCK_WAIT Counter "varve_lock_wait_seconds_total" [] "Time of those waits, summed over threads.";
    OPEN_TXNS Gauge "varve_transactions_open" [] "Transactions open now.";
    SNAPSHOTS Gauge "varve_snapshots_open" [] "Snapshots open now.";
    SNAPSHOTS_OPENED Counter "varve_snapshots_opened_total" [] "Snapshots ever opened.";
    SNAPSHOTS_EVICTED Counter "varve_snapshots_evicted_total" [] "Snapshots that lost their old values to the limits of memory and snapshot_disk.";
    VERSIONS Counter "varve_versions_kept_total" [] "Old values set aside for snapshots.";

    FRAMES Gauge "varve_pool_frames" [] "Frames of the buffer pool, a page each.";
    FREE_FRAMES Gauge "varve_pool_free_frames" [] "Frames without a page.";
    DIRTY Gauge "varve_pool_dirty_pages" [] "Changed pages not yet written, those set aside included.";
    ASIDE Gauge "varve_pool_aside_pages" [] "Changed pages that left their frames and wait to be written.";
    HITS Counter "varve_pool_hits_total" ["kind"] "Accesses that found the page in memory, by kind of page; unknown: counted without it.";
    MISSES Counter "varve_pool_misses_total" ["kind"] "Accesses that had to read the page.";
    PREFETCHED Counter "varve_pool_prefetched_pages_total" ["kind"] "Pages read ahead.";
    PREFETCH_USED Counter "varve_pool_prefetch_used_pages_total" ["kind"] "Pages read ahead that were then accessed.";
    PREFETCH_WASTED Counter "varve_pool_prefetch_wasted_pages_total" ["kind"] "Pages read ahead that left without an access.";
    CREATED Counter "varve_pool_created_pages_total" ["kind"] "Pages made without a read.";
    EVICTED_CLEAN Counter "varve_pool_evicted_clean_pages_total" ["kind"] "Unchanged pages that left.";
    EVICTED_DIRTY Counter "varve_pool_evicted_dirty_pages_total" ["kind"] "Pages that left right after a write for which their frame was the reason.";
    WRITTEN Counter "varve_pool_written_pages_total" ["why"] "Pages written: replacement (a frame was wanted), recoverability (the log was to be let go), checkpoint.";
    FOREGROUND Counter "varve_pool_foreground_writes_total" [] "Pages whose write a working thread submitted itself.";
    SINGLE Counter "varve_pool_single_page_flushes_total" [] "Pages written by the thread that missed.";
    BATCHES Counter "varve_pool_write_batches_total" [] "Batches of page writes.";
    STALLS Counter "varve_pool_stalls_total" [] "Misses that found no clean page to take at once.";
    STALL_TIME Counter "varve_pool_stall_seconds_total" [] "Time that misses waited for a frame, summed over threads.";
    SCANNED Counter "varve_pool_scanned_pages_total" ["who"] "Pages looked at in search of a victim by misses, and by cleaners.";
    LOG_FORCES Counter "varve_pool_log_forces_total" [] "Times that the log was forced before pages could be written.";
    LIST_WAIT Counter "varve_pool_list_wait_seconds_total" [] "Time that threads waited for the lock of an instance's lists.";
    POOL_ERRORS Counter "varve_pool_errors_total" ["op"] "Page reads and writes that failed.";
    READ_RETRIES Counter "varve_pool_read_retries_total" [] "Page reads tried again after an error.";

    UPDATES_NEW Counter "varve_new_pages_written_total" ["keyspace"]
        "Pages written that were made here and not read back since.";
    UPDATES Counter "varve_page_updates_total" ["keyspace", "le"]
        "Other page writes by bytes changed, header included: at most `le`; `+Inf`: all. Cumulative.";
    UPDATES_NET Counter "varve_page_updates_net_total" ["keyspace", "le"]
        "The same by the bytes that changed behind the page header.";

    IMAGES Counter "varve_page_images_total" [] "Pages logged whole.";
    SPLITS Counter "varve_tree_splits_total" [] "Nodes divided.";
    MERGES Counter "varve_tree_merges_total" [] "Nodes joined or freed.";

    POISONED Gauge "varve_log_poisoned" [] "1 when a write of the log failed: reads go on, writes are refused until the database is opened again.";
    GROUPS Counter "varve_log_groups_total" [] "Groups made durable.";
    GROUP_BYTES Counter "varve_log_group_bytes_total" [] "Bytes of those groups, headers included.";
    LOG_WRITES Counter "varve_log_writes_total" [] "Durable device writes of log blocks.";
    LOG_BYTES Counter "varve_log_written_bytes_total" [] "Bytes of those writes, padding included.";
    LOG_WAITS Counter "varve_log_waits_total" [] "Times that somebody waited for another's log write.";
    BUFFER_WAITS Counter "varve_log_buffer_waits_total" [] "Times that an append found the log buffer full.";
    SPACE_WAITS Counter "varve_log_space_waits_total" [] "Times that somebody waited for log space, that is for a checkpoint.";
    SPACE_WAIT Counter "varve_log_space_wait_seconds_total" [] "Time of those waits, summed over threads.";
    LOG_CAPACITY Gauge "varve_log_capacity_bytes" [] "Bytes that the ring of log segments holds.";
    LOG_AGE Gauge "varve_log_age_bytes" [] "Bytes from the redo point to the end of the log: what recovery would read now.";
    LOG_END Gauge "varve_log_end_bytes" [] "Position of the end of the log in its stream.";
    LOG_DURABLE Gauge "varve_log_durable_bytes" [] "Position up to which the log is on media.";
    REDO_BUDGET Gauge "varve_log_redo_budget_bytes" [] "Bytes that recovery may have to redo within its bound; writers wait past that.";
    CHECKPOINTS Counter "varve_checkpoints_completed_total" [] "Checkpoints completed.";
    CHECKPOINTS_FAILED Counter "varve_checkpoints_failed_total" [] "Checkpoints that failed.";
    CHECKPOINT_LAST Gauge "varve_checkpoint_last_seconds" [] "How long the last checkpoint took.";
    CHECKPOINT_AGE Gauge "varve_checkpoint_age_seconds" [] "Time since the last checkpoint was complete, or since opening.";

    MEMORY_USED Gauge "varve_memory_used_bytes" ["class"] "Memory in use, by class of the limit.";
    MEMORY_PEAK Gauge "varve_memory_peak_bytes" ["class"] "Most memory ever in use.";
    MEMORY_LIMIT Gauge "varve_memory_limit_bytes" ["class"] "Most memory that the class may use.";
    MEMORY_REFUSED Counter "varve_memory_refused_total" ["class"] "Requests for memory that were refused.";

    TRIMMED Counter "varve_trimmed_pages_total" [] "Free pages that the data device was told of.";
    TRIMS_FAILED Counter "varve_trims_failed_total" [] "Batches of those that failed; the pages are free all the same.";

    OPS Counter "varve_device_operations_total" ["device", "op"] "Requests finished, failed ones too; device: data, log, fast.";
    OP_BYTES Counter "varve_device_bytes_total" ["device", "op"] "Bytes of those requests.";
    OP_TIME Counter "varve_device_seconds_total" ["device", "op"] "Time from submission to completion, summed over requests; its rate is the mean number under way.";
    OP_ERRORS Counter "varve_device_errors_total" ["device", "op"] "Requests that failed.";
    BUSY Counter "varve_device_busy_seconds_total" ["device"] "Time during which at least one request was under way, where it is measured.";
    IN_FLIGHT Gauge "varve_device_in_flight" ["device"] "Requests under way now, where it is measured.";

    ARRAY_SLOTS Gauge "varve_array_slots" ["drive"] "Extents that a drive of the array has room for.";
    ARRAY_USED Gauge "varve_array_used_slots" ["drive"] "Extents that lie on it.";
    ARRAY_OPS Counter "varve_array_operations_total" ["drive", "op"] "Requests finished, for tables and moves too.";
    ARRAY_BYTES Counter "varve_array_bytes_total" ["drive", "op"] "Bytes of those requests.";
    ARRAY_TIME Counter "varve_array_seconds_total" ["drive", "op"] "Time from submission to completion, summed.";
    ARRAY_ERRORS Counter "varve_array_errors_total" ["drive", "op"] "Requests that failed.";
    ARRAY_BUSY Counter "varve_array_busy_seconds_total" ["drive"] "Time with a request under way, if measured.";
    ARRAY_MOVED Counter "varve_array_moved_extents_total" [] "Extents that moved to another drive.";
    ARRAY_UNDONE Counter "varve_array_undone_moves_total" [] "Moves tried again, for what was written too often.";
    ARRAY_LEFT Gauge "varve_array_moves_left" [] "Extents that are still to move.";

    LSM_SEGMENTS Gauge "varve_lsm_segments" ["keyspace", "level"] "Segments of an LSM keyspace.";
    LSM_BYTES Gauge "varve_lsm_bytes" ["keyspace", "level"] "Bytes of their pages.";
    LSM_SCORE Gauge "varve_lsm_score" ["keyspace", "level"]
        "How much a level is over its limit; from 1 on it is to be merged.";
    LSM_LEVEL_WRITTEN Counter "varve_lsm_written_bytes_total" ["keyspace", "level"]
        "Bytes written to a level by flushes and merges.";
    LSM_FILTER Counter "varve_lsm_looks_total" ["keyspace", "level", "outcome"]
        "Looks at segments: filtered (the filter says no), found, false_positive (let pass in vain).";
    LSM_MEMTABLES Gauge "varve_lsm_memtable_bytes" ["keyspace"] "Bytes of memtables.";
    LSM_USER Counter "varve_lsm_user_bytes_total" ["keyspace"] "Bytes of keys and values that were written.";
    LSM_LOG Counter "varve_lsm_log_bytes_total" ["keyspace"] "Bytes of their log records.";
    LSM_FLUSHES Counter "varve_lsm_flushes_total" ["keyspace"] "Memtables written as segments.";
    LSM_FLUSHED Counter "varve_lsm_flushed_bytes_total" ["keyspace"] "Bytes of these segments.";
    LSM_MERGES Counter "varve_lsm_merges_total" ["keyspace", "why"]
        "Merges: seek (for segments looked at in vain too often), other; move: segments went down as they were.";
    LSM_MERGED Counter "varve_lsm_merge_bytes_total" ["keyspace", "op"] "Bytes that merges read and wrote.";
    LSM_MERGE_TIME Counter "varve_lsm_merge_seconds_total" ["keyspace"] "Time that merges took.";
    LSM_LOOKUPS Counter "varve_lsm_lookups_total" ["keyspace"] "Look-ups of single keys that no memtable answered.";
    LSM_WAITS Counter "varve_lsm_waits_total" ["keyspace", "why"]
        "Writes that waited: delay (back-pressure), stall (for memory).";
    LSM_WAIT Counter "varve_lsm_wait_seconds_total" ["keyspace", "why"] "Time of those waits, summed over threads.";
    LSM_DEBT Gauge "varve_lsm_debt_bytes" ["keyspace"]
        "Bytes that merges have to read and write until no level is over its limit, about.";
    LSM_DEBT_TIME Gauge "varve_lsm_debt_seconds" ["keyspace"] "The same in seconds of merging.";
    LSM_PRESSURE Gauge "varve_lsm_pressure" ["keyspace"]
        "How far writers are held up: 0 not at all, 1 as far as planned.";
    LSM_AMPLIFICATION Gauge "varve_lsm_amplification" ["keyspace", "of"]
        "Amplification since the opening: write, read, space.";
    LSM_ALONE Gauge "varve_lsm_without_worker" ["keyspace"]
        "Whether its merges need a worker near the data and the database has none: 1, or 0.";

    NEAR_ATTACHED Gauge "varve_near_attached" [] "Whether the worker near the data does merges: 1, or 0.";
    NEAR_ATTACHMENTS Counter "varve_near_attachments_total" []
        "Times that the worker was attached to, the opening included.";
    NEAR_TASKS Counter "varve_near_tasks_total" ["side"] "Parts of merges done: by host, by worker.";
    NEAR_PIPELINED_TASKS Counter "varve_near_pipelined_tasks_total" ["side"]
        "Those of these parts that were merged in a pipeline.";
    NEAR_PIPELINED Gauge "varve_near_pipelined" ["side"]
        "How the last part was merged: 1 in a pipeline, 0 one step after the other.";
    NEAR_BYTES Counter "varve_near_bytes_total" ["side", "op"] "Bytes that parts of merges read and wrote.";
    NEAR_TIME Counter "varve_near_seconds_total" ["side"] "Time spent in them.";
    NEAR_SHARE Gauge "varve_near_host_share" [] "The host's share of the last merge, as it was wanted.";
    NEAR_CPU Gauge "varve_near_cpu_ratio" ["side"]
        "Share of the side's processor that was in use when a merge was last shared, where somebody says.";
    NEAR_MEMORY Gauge "varve_near_memory_ratio" ["side"] "The same of its memory.";
    NEAR_LARGE Gauge "varve_near_large_ratio" ["side"] "Share of large pairs by which the last part was decided.";
    NEAR_WAITED Counter "varve_near_waited_seconds_total" [] "Time that the host waited for the worker.";
    NEAR_WORKER_WAITED Counter "varve_near_worker_waited_seconds_total" []
        "Time that the worker was done while the host was not yet, about.";
    NEAR_LINK Counter "varve_near_link_bytes_total" ["direction"]
        "Bytes of messages over the connection, blocks included: to_worker, from_worker.";
    NEAR_REQUESTS Counter "varve_near_link_requests_total" [] "Requests sent over the connection.";
    NEAR_FALLBACKS Counter "varve_near_fallbacks_total" ["why"]
        "Parts that the host did in place of the worker: refused, failed, late, garbage, lost; detached: whole merges.";
    NEAR_RESUMED Counter "varve_near_resumed_total" []
        "Of these parts, those that were taken up from the last segment that the worker had finished.";
    NEAR_GIVEN_UP Gauge "varve_near_given_up" [] "Jobs given up that have not ended: their pages are kept from use.";

    TIER_SLOTS Gauge "varve_tier_slots" [] "Slots of the fast device, a page each.";
    TIER_OCCUPIED Gauge "varve_tier_occupied_slots" [] "Slots in use.";
    TIER_NEWER Gauge "varve_tier_dirty_slots" [] "Slots whose page is newer than home.";
    TIER_ATTACHED Gauge "varve_tier_attached" [] "1 when a fast device is in use.";
    TIER_FAILED Gauge "varve_tier_failed" [] "1 when the fast device failed so often that it counts as lost.";
    TIER_LIFE Gauge "varve_tier_life_used_ratio" [] "Share of its rated life that the fast device says is used up, where it does.";
    TIER_MEMORY Gauge "varve_tier_memory_bytes" [] "Memory for map and statistics.";
    TIER_READS Counter "varve_tier_reads_total" ["from"] "Reads that somebody waited for, from the fast and from the slow device.";
    TIER_PREFETCHES Counter "varve_tier_prefetches_total" ["from"] "Pages read ahead, from the fast and from the slow device.";
    TIER_ADMITTED Counter "varve_tier_admitted_pages_total" ["state"] "Pages admitted to the fast device, clean and dirty.";
    TIER_OVERWRITES Counter "varve_tier_overwrites_total" [] "Dirty pages written in place on the fast device.";
    TIER_HOME Counter "varve_tier_home_writes_total" [] "Dirty pages that the pool wrote home.";
    TIER_EVICTED Counter "varve_tier_evicted_pages_total" ["state"] "Pages that lost their slot, equal to home and newer.";
    TIER_COPIED Counter "varve_tier_copied_back_pages_total" [] "Pages copied home.";
    TIER_REFUSED Counter "varve_tier_refused_pages_total" ["reason"] "Pages that were not admitted.";
    TIER_WRITTEN Counter "varve_tier_written_bytes_total" [] "Bytes written to the fast device since it was attached, over all openings.";
    TIER_BUDGET Gauge "varve_tier_budget_spent_bytes" [] "Of today's write budget, the bytes spent.";
    TIER_ERRORS Counter "varve_tier_errors_total" ["what"] "Requests and work that failed (failed), pages found damaged (damaged), replaced by home's (repaired), lost (lost).";
}
