//! `TestStore`: right use passes, each wrong use is caught.

use std::sync::Arc;
use varve_device::{AlignedBuf, OpKind};
use varve_models::{Fault, FaultPlan, Faulty, MemDevice};
use varve_volume::*;

fn sealed(id: u64, lsn: Lsn, fill: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(4096);
    buf[page::HEADER..].fill(fill);
    page::set_lsn(&mut buf, lsn);
    page::seal(&mut buf, PageId(id));
    buf
}

fn write_io(id: u64, buf: &AlignedBuf, changed: Option<Vec<u16>>) -> PageIo {
    // SAFETY: every test keeps `buf` until the ticket was waited for (or panics on purpose over memory devices, which
    // copy at submission).
    unsafe {
        PageIo::write(PageId(id), KeyspaceId(1), WriteWhy::Replacement, PageUse::default(), buf.as_ptr(), changed)
    }
}

fn read_io(id: u64, buf: &mut AlignedBuf) -> PageIo {
    // SAFETY: as for `write_io`; memory devices fill a read's buffer in `wait` only.
    unsafe { PageIo::read(PageId(id), ReadWhy::Prefetch, buf.as_mut_ptr()) }
}

fn store() -> Arc<TestStore> {
    TestStore::new(4096, 16)
}

#[test]
fn right_use_passes() {
    let store = store();
    store.set_log_rule(|_, lsn| lsn <= 20);
    let (a, b) = (sealed(1, 10, 1), sealed(2, 11, 2));
    store.submit(vec![write_io(1, &a, None), write_io(2, &b, None)]).wait_all().unwrap();
    let mut back = AlignedBuf::new(4096);
    assert_eq!(store.submit(vec![read_io(1, &mut back)]).wait(0), Ok(CostClass(0)));
    assert!(back[..] == a[..]);
    assert!(!store.evict_clean(PageId(1), &back, PageUse::default()));
    // One byte changed, and told so.
    let mut c = sealed(1, 20, 1);
    c[100] = 9;
    page::seal(&mut c, PageId(1));
    store.dirtied(PageId(1), KeyspaceId(0), PageUse::default());
    store.submit(vec![write_io(1, &c, Some(vec![16, 17, 100]))]).wait_all().unwrap();
    store.discard(&[PageId(1), PageId(2)]).unwrap();
    store.submit(vec![write_io(2, &sealed(2, 15, 0), None)]).wait_all().unwrap();
    store.submit(vec![read_io(2, &mut back)]).wait_all().unwrap();
    let unwritten = store.submit(vec![read_io(3, &mut back)]).wait_all().unwrap_err();
    assert_eq!(unwritten, VolumeError::Damaged { page: PageId(3), damage: PageDamage::Unwritten });
    store.grow(32).unwrap();
    store.sync().unwrap();
    store.assert_idle();
    let stats = store.stats();
    assert_eq!((stats.replacement_writes, stats.prefetch_reads, stats.discarded, stats.syncs), (4, 3, 2, 1));
}

#[test]
fn after_a_failed_write_anything_may_be_there() {
    let plan = FaultPlan::new(2).nth(2, OpKind::Write, Fault::Eio);
    let store = TestStore::over(Single::new(Faulty::new(MemDevice::new(65536), plan), 4096).unwrap());
    store.submit(vec![write_io(1, &sealed(1, 1, 1), None)]).wait_all().unwrap();
    store.submit(vec![write_io(1, &sealed(1, 2, 2), None)]).wait_all().unwrap_err();
    let mut back = AlignedBuf::new(4096);
    store.submit(vec![read_io(1, &mut back)]).wait_all().unwrap();
    assert!([1, 2].contains(&page::lsn(&back)));
    assert_eq!(store.stats().errors, 1);
    store.assert_idle();
}

macro_rules! caught {
    ($name:ident, $reason:literal, |$store:ident| $body:block) => {
        #[test]
        #[should_panic(expected = $reason)]
        fn $name() {
            let $store = store();
            $body
        }
    };
}

caught!(unsealed, "without being sealed", |s| {
    let mut buf = sealed(1, 0, 1);
    buf[77] ^= 1;
    let _ = s.submit(vec![write_io(1, &buf, None)]);
});
caught!(sealed_for_another_page, "without being sealed", |s| {
    let _ = s.submit(vec![write_io(2, &sealed(1, 0, 1), None)]);
});
caught!(page_before_log, "before its log, LSN 21", |s| {
    s.set_log_rule(|_, lsn| lsn <= 20);
    let _ = s.submit(vec![write_io(1, &sealed(1, 21, 1), None)]);
});
caught!(two_writes_in_flight, "while a write of it is in flight", |s| {
    let (a, b) = (sealed(1, 0, 1), sealed(1, 0, 2));
    let _ = s.submit(vec![write_io(1, &a, None), write_io(1, &b, None)]);
});
caught!(read_during_write, "while a write of it is in flight", |s| {
    let a = sealed(1, 0, 1);
    let mut ticket = s.submit(vec![write_io(1, &a, None)]);
    let mut back = AlignedBuf::new(4096);
    let _ = s.submit(vec![read_io(1, &mut back)]);
    let _ = ticket.wait(0);
});
caught!(write_during_read, "while a read of it is in flight", |s| {
    let a = sealed(1, 0, 1);
    let mut back = AlignedBuf::new(4096);
    let mut ticket = s.submit(vec![read_io(1, &mut back)]);
    let _ = s.submit(vec![write_io(1, &a, None)]);
    let _ = ticket.wait(0);
});
caught!(shared_memory, "use the same memory", |s| {
    let mut back = AlignedBuf::new(4096);
    let batch = vec![read_io(1, &mut back), read_io(2, &mut back)];
    let _ = s.submit(batch);
});
caught!(staging_copy_changed, "staging copy changed", |s| {
    let mut a = sealed(1, 0, 1);
    let mut ticket = s.submit(vec![write_io(1, &a, None)]);
    a[50] = 99;
    let _ = ticket.wait(0);
});
caught!(misaligned, "not aligned", |s| {
    let mut back = AlignedBuf::new(8192);
    // SAFETY: refused before it is used.
    let _ = s.submit(vec![unsafe { PageIo::read(PageId(1), ReadWhy::Demand, back[512..].as_mut_ptr()) }]);
});
caught!(lsn_goes_back, "goes back from LSN 7 to 6", |s| {
    s.submit(vec![write_io(1, &sealed(1, 7, 1), None)]).wait_all().unwrap();
    let _ = s.submit(vec![write_io(1, &sealed(1, 6, 1), None)]);
});
caught!(untold_change, "byte 16 changed but is not among", |s| {
    s.submit(vec![write_io(1, &sealed(1, 7, 1), None)]).wait_all().unwrap();
    let _ = s.submit(vec![write_io(1, &sealed(1, 8, 2), Some(vec![]))]);
});
caught!(a_change_told_twice, "is told of twice", |s| {
    let _ = s.submit(vec![write_io(1, &sealed(1, 7, 1), Some(vec![50, 40, 50]))]);
});
caught!(read_after_discard, "read after it was discarded", |s| {
    s.discard(&[PageId(1)]).unwrap();
    let mut back = AlignedBuf::new(4096);
    let _ = s.submit(vec![read_io(1, &mut back)]);
});
caught!(unclean_eviction, "differs from what was stored", |s| {
    s.submit(vec![write_io(1, &sealed(1, 7, 1), None)]).wait_all().unwrap();
    s.evict_clean(PageId(1), &sealed(1, 8, 1), PageUse::default());
});
caught!(unknown_eviction, "was never stored", |s| {
    s.evict_clean(PageId(1), &sealed(1, 8, 1), PageUse::default());
});
caught!(dirtied_past_the_end, "has 16 pages", |s| {
    s.dirtied(PageId(16), KeyspaceId(0), PageUse::default());
});
caught!(forgotten_ticket, "1 pending requests", |s| {
    let a = sealed(1, 0, 1);
    drop(s.submit(vec![write_io(1, &a, None)]));
});

/// The store below returns stale bytes.
#[test]
#[should_panic(expected = "other bytes than were written")]
fn lost_writes_are_caught() {
    let device = MemDevice::new(65536);
    let store = TestStore::over(Single::new(device.clone(), 4096).unwrap());
    let old = sealed(1, 1, 1);
    store.submit(vec![write_io(1, &old, None)]).wait_all().unwrap();
    store.submit(vec![write_io(1, &sealed(1, 2, 2), None)]).wait_all().unwrap();
    varve_device::write_at(&*device, 4096, &old, false).unwrap();
    let mut back = AlignedBuf::new(4096);
    let _ = store.submit(vec![read_io(1, &mut back)]).wait_all();
}
