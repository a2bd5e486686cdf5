//! The page header: every flipped bit is found.

use proptest::prelude::*;
use varve_device::AlignedBuf;
use varve_volume::*;

fn page_of(size: usize, id: u64, fill: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::new(size);
    for (i, b) in buf[page::HEADER..].iter_mut().enumerate() {
        *b = fill.get(i % fill.len().max(1)).copied().unwrap_or(0);
    }
    page::set_kind(&mut buf, 3);
    page::set_lsn(&mut buf, 0x0102_0304_0506_0708);
    page::set_keyspace(&mut buf, KeyspaceId(42));
    page::seal(&mut buf, PageId(id));
    buf
}

#[test]
fn the_header_is_laid_out_as_documented() {
    let buf = page_of(4096, 0x1112_1314_1516_1718, &[]);
    let expected = [
        0x41, 0x56, 2, 3, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 8, 7, 6, 5, 4, 3, 2, 1, 42, 0, 0, 0, 0, 0, 0,
        0,
    ];
    assert_eq!(buf[4..32], expected);
    assert_eq!(buf[..4], crc32c::crc32c(&buf[4..]).to_le_bytes());
    assert_eq!((page::kind(&buf), page::keyspace(&buf)), (3, KeyspaceId(42)));
    assert_eq!((page::lsn(&buf), page::id(&buf)), (0x0102_0304_0506_0708, PageId(0x1112_1314_1516_1718)));
}

#[test]
fn every_flipped_bit_of_a_page_is_found() {
    let mut buf = page_of(4096, 7, b"some content");
    page::verify(&buf, PageId(7)).unwrap();
    for bit in 0..4096 * 8 {
        buf[bit / 8] ^= 1 << (bit % 8);
        assert!(page::verify(&buf, PageId(7)).is_err(), "bit {bit}");
        buf[bit / 8] ^= 1 << (bit % 8);
    }
    page::verify(&buf, PageId(7)).unwrap();
}

#[test]
fn each_kind_of_damage_has_its_name() {
    let zeros = AlignedBuf::new(4096);
    assert_eq!(page::verify(&zeros, PageId(0)), Err(PageDamage::Unwritten));
    let mut buf = page_of(4096, 7, &[]);
    assert_eq!(page::verify(&buf, PageId(8)), Err(PageDamage::WrongId { found: PageId(7) }));
    // A sound checksum over other content.
    let reseal = |buf: &mut AlignedBuf| {
        let sum = crc32c::crc32c(&buf[4..]);
        buf[..4].copy_from_slice(&sum.to_le_bytes());
    };
    // The version before is read, a newer one is not.
    buf[6] = 1;
    reseal(&mut buf);
    assert_eq!(page::verify(&buf, PageId(7)), Ok(()));
    buf[6] = 9;
    reseal(&mut buf);
    assert_eq!(page::verify(&buf, PageId(7)), Err(PageDamage::NewerVersion { found: 9 }));
    buf[4] = 0;
    reseal(&mut buf);
    assert_eq!(page::verify(&buf, PageId(7)), Err(PageDamage::WrongMagic { found: 0x5600 }));
    buf[4000] = 1;
    assert!(matches!(page::verify(&buf, PageId(7)), Err(PageDamage::Checksum { .. })));
    // Only the checksum's own bytes survived a torn first write.
    let mut torn = AlignedBuf::new(4096);
    torn[..4].copy_from_slice(&[1, 2, 3, 4]);
    assert!(matches!(page::verify(&torn, PageId(7)), Err(PageDamage::Checksum { .. })));
}

proptest! {
    #[test]
    fn sealed_pages_verify_and_damaged_ones_do_not(
        size in prop::sample::select(vec![4096usize, 8192, 16384, 32768]),
        id in any::<u64>(),
        fill in prop::collection::vec(any::<u8>(), 0..100),
        bits in prop::collection::btree_set(0usize..4096 * 8, 1..4),
    ) {
        let mut buf = page_of(size, id, &fill);
        prop_assert_eq!(page::verify(&buf, PageId(id)), Ok(()));
        for bit in bits {
            buf[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assert!(page::verify(&buf, PageId(id)).is_err());
    }
}
