//! `Single` over memory and over a file.

use std::sync::Arc;
use varve_device::{AlignedBuf, Device, FileDevice, Options};
use varve_models::MemDevice;
use varve_volume::*;

fn write(store: &dyn PageStore, id: u64, fill: u8) -> Result<(), VolumeError> {
    let mut buf = AlignedBuf::new(store.page_size());
    buf[page::HEADER..].fill(fill);
    page::seal(&mut buf, PageId(id));
    // SAFETY: `buf` outlives the request, which is waited for.
    let io = unsafe {
        PageIo::write(PageId(id), KeyspaceId(0), WriteWhy::Checkpoint, PageUse::default(), buf.as_ptr(), None)
    };
    store.submit(vec![io]).wait_all()
}

fn read(store: &dyn PageStore, id: u64) -> Result<AlignedBuf, VolumeError> {
    let mut buf = AlignedBuf::new(store.page_size());
    // SAFETY: `buf` outlives the request, which is waited for.
    let io = unsafe { PageIo::read(PageId(id), ReadWhy::Demand, buf.as_mut_ptr()) };
    store.submit(vec![io]).wait_all()?;
    Ok(buf)
}

fn exercise(device: Arc<dyn Device>) {
    let store = Single::new(device.clone(), 8192).unwrap();
    assert_eq!(store.pages(), 0);
    assert_eq!(store.usable_bytes(KeyspaceId(3)), 8192 - page::HEADER);
    store.grow(10).unwrap();
    assert_eq!(store.pages(), 10);
    store.grow(4).unwrap();
    assert_eq!(store.pages(), 10, "a store never shrinks");

    let unwritten = VolumeError::Damaged { page: PageId(3), damage: PageDamage::Unwritten };
    assert_eq!(read(&*store, 3).unwrap_err(), unwritten);
    write(&*store, 3, 7).unwrap();
    write(&*store, 4, 9).unwrap();
    assert!(read(&*store, 3).unwrap()[page::HEADER..].iter().all(|&b| b == 7));
    assert_eq!(read(&*store, 10).unwrap_err(), VolumeError::OutOfRange { page: PageId(10), pages: 10 });
    store.sync().unwrap();

    // A write that went astray, and a flipped bit.
    let mut raw = AlignedBuf::new(8192);
    varve_device::read_at(&*device, 4 * 8192, &mut raw).unwrap();
    varve_device::write_at(&*device, 5 * 8192, &raw, false).unwrap();
    let wrong = VolumeError::Damaged { page: PageId(5), damage: PageDamage::WrongId { found: PageId(4) } };
    assert_eq!(read(&*store, 5).unwrap_err(), wrong);
    raw[100] ^= 4;
    varve_device::write_at(&*device, 4 * 8192, &raw, false).unwrap();
    let damage = read(&*store, 4).unwrap_err();
    assert!(matches!(damage, VolumeError::Damaged { damage: PageDamage::Checksum { .. }, .. }), "{damage}");

    store.discard(&[PageId(3), PageId(5), PageId(4)]).unwrap();
    assert!(!store.evict_clean(PageId(3), &raw, PageUse::default()));
    let stats = store.stats();
    assert_eq!((stats.checkpoint_writes, stats.discarded, stats.damaged, stats.clean_declined), (2, 3, 3, 1));
}

#[test]
fn pages_in_memory() {
    exercise(MemDevice::new(0));
}

#[test]
fn pages_in_a_file() {
    let path = std::env::temp_dir().join(format!("varve-single-{}", std::process::id()));
    let options = Options { create: true, ..Options::default() };
    exercise(FileDevice::open(&path, options).unwrap());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn odd_page_sizes_are_refused() {
    for size in [0, 512, 5000, 65536] {
        assert_eq!(Single::new(MemDevice::new(0), size).err(), Some(VolumeError::PageSize { size }));
    }
}
