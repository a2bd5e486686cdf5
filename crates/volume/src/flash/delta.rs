//! Delta records: small changes of a page, appended to it where it is programmed.
//!
//! The end of a page has room for N records of M bytes that a full write leaves erased (Hardock et al., SIGMOD 2017):
//! record i begins at `page size - (N - i) * M`. It is a list of changed bytes, three bytes each: offset (2, little
//! endian) and value (1); offset 0xffff: no more of them.
//!
//! The spare area has 8 bytes for each record, behind the 16 of the translation layer: the first four bytes of the page
//! as they are with the record, then a CRC-32C of the record, these four bytes and its number. The page's own checksum
//! is in its first four bytes, so it need not be among the changed ones, and whoever reads the page checks what the
//! records made of it.
//!
//! Nobody above knows of the room for records: a page that was read has zeros there, and is written with zeros there.

use varve_device::flash::LEAST_SPARE;

/// Bytes of a changed byte in a record.
const CHANGE: usize = 3;
const _: () = assert!(CHANGE == 2 + 1, "an offset and a value");
/// Bytes of a record's part of the spare area.
const SLOT: usize = 8;
/// First bytes of the page that the spare area has.
const HEAD: usize = 4;
/// Where the first record's part of the spare area is.
const SLOTS: usize = LEAST_SPARE as usize;
/// What an erased byte reads as.
const ERASED: u8 = 0xff;

const _: () = assert!(HEAD + 4 == SLOT);

/// N records of M bytes in each page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheme {
    /// Records that a page takes; 0: none.
    pub n: u8,
    /// Bytes of a record, a multiple of 3.
    pub m: u16,
}

/// A record as it is programmed: bytes and their offset in the page, bytes and their offset in the spare area.
pub(super) struct Record {
    pub(super) data: (usize, Vec<u8>),
    pub(super) spare: (usize, [u8; SLOT]),
}

/// What the records of a page are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Places for records that are programmed, whether well or not.
    pub(super) used: u8,
    /// The last of them was interrupted, and is ignored.
    pub(super) torn: bool,
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}x{}]", self.n, self.m)
    }
}

impl Scheme {
    /// Bytes at the end of a page that are kept for records.
    pub fn area(&self) -> usize {
        usize::from(self.n) * usize::from(self.m)
    }

    /// Most changed bytes that a record takes.
    pub fn most_changes(&self) -> usize {
        if self.n == 0 { 0 } else { usize::from(self.m) / CHANGE }
    }

    /// Bytes of the spare area that are used.
    pub(super) fn spare_bytes(&self) -> usize {
        SLOTS + usize::from(self.n) * SLOT
    }

    /// Where a record begins in a page of so many bytes.
    fn place(&self, i: u8, page: usize) -> usize {
        assert!(i < self.n, "a record has a place");
        page - usize::from(self.n - i) * usize::from(self.m)
    }

    /// Where a record's part of the spare area begins.
    fn slot(i: u8) -> usize {
        SLOTS + usize::from(i) * SLOT
    }

    /// Record `i`, which makes the bytes at `changed` those of `page`; none: it would look as if it were erased.
    pub(super) fn record(&self, i: u8, page: &[u8], changed: &[u16]) -> Option<Record> {
        assert!(changed.len() <= self.most_changes(), "the changes fit a record");
        let mut bytes = vec![ERASED; usize::from(self.m)];
        for (change, at) in bytes.chunks_exact_mut(CHANGE).zip(changed) {
            let value = page[usize::from(*at)];
            debug_assert!(usize::from(*at) < page.len() - self.area(), "no byte of the records is changed by one");
            debug_assert!(usize::from(*at) >= HEAD, "the first bytes of a page are in the slot, not in the record");
            change[..2].copy_from_slice(&at.to_le_bytes());
            change[2] = value;
        }
        let mut slot = [0; SLOT];
        slot[..HEAD].copy_from_slice(&page[..HEAD]);
        slot[HEAD..].copy_from_slice(&checksum(i, &bytes, &page[..HEAD]));
        let spare = (Scheme::slot(i), slot);
        (slot != [ERASED; SLOT]).then(|| Record { data: (self.place(i, page.len()), bytes), spare })
    }

    /// Leaves the room for records as a full write does: what is programmed ends before it.
    pub(super) fn without_room<'a>(&self, page: &'a [u8]) -> &'a [u8] {
        &page[..page.len() - self.area()]
    }

    /// Applies the records of a page that was read to it, in their order, and clears their room. `believe`: whatever
    /// their checksums say, which is wrong.
    pub(super) fn apply(&self, page: &mut [u8], spare: &[u8], believe: bool) -> Found {
        assert!(self.n > 0 && spare.len() >= self.spare_bytes(), "a page that takes records was read with their slots");
        let mut found = Found { used: 0, torn: false };
        let (body, area) = page.split_at_mut(page.len() - self.area());
        for (i, bytes) in area.chunks_exact(usize::from(self.m).max(1)).enumerate().take(usize::from(self.n)) {
            let i = i as u8;
            let slot = &spare[Scheme::slot(i)..][..SLOT];
            if slot.iter().chain(bytes).all(|b| *b == ERASED) {
                continue;
            }
            found.used = i + 1;
            found.torn = slot[HEAD..] != checksum(i, bytes, &slot[..HEAD]) && !believe;
            if !found.torn {
                change(body, bytes, &slot[..HEAD]);
            }
        }
        area.fill(0);
        found
    }
}

fn checksum(i: u8, record: &[u8], head: &[u8]) -> [u8; 4] {
    crc32c::crc32c_append(crc32c::crc32c_append(u32::from(i), record), head).to_le_bytes()
}

/// Makes the changes of one record. What lies outside of the page (only a record that is not one of ours has such) is
/// left out; the page's checksum tells.
fn change(body: &mut [u8], record: &[u8], head: &[u8]) {
    for change in record.chunks_exact(CHANGE) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(byte) = body.get_mut(at) {
            *byte = change[2];
        }
    }
    body[..HEAD].copy_from_slice(head);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCHEME: Scheme = Scheme { n: 3, m: 12 };
    const PAGE: usize = 512;

    /// A page as flash has it, with its spare area.
    fn programmed(page: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut data = SCHEME.without_room(page).to_vec();
        data.resize(PAGE, ERASED);
        (data, vec![ERASED; SCHEME.spare_bytes()])
    }

    fn append(flash: &mut (Vec<u8>, Vec<u8>), record: &Record) {
        let (at, bytes) = (record.data.0, &record.data.1);
        flash.0[at..at + bytes.len()].copy_from_slice(bytes);
        flash.1[record.spare.0..][..SLOT].copy_from_slice(&record.spare.1);
    }

    proptest! {
        /// A page that is read is the page that was appended to, whatever changed, and has its room cleared.
        #[test]
        fn a_page_is_what_its_records_make_of_it(
            first in prop::collection::vec(any::<u8>(), PAGE - 36),
            changes in prop::collection::vec(prop::collection::btree_map(4..PAGE - 36, any::<u8>(), 0..=4), 0..=3),
            head in any::<[u8; 4]>(),
        ) {
            let mut page = first;
            page.resize(PAGE, 0);
            let mut flash = programmed(&page);
            let used = changes.len() as u8;
            for (i, change) in changes.iter().enumerate() {
                page[..4].copy_from_slice(&head.map(|byte| byte ^ i as u8));
                change.iter().for_each(|(at, value)| page[*at] = *value);
                let changed: Vec<u16> = change.keys().map(|at| *at as u16).collect();
                append(&mut flash, &SCHEME.record(i as u8, &page, &changed).unwrap());
            }
            prop_assert_eq!(SCHEME.apply(&mut flash.0, &flash.1, false), Found { used, torn: false });
            prop_assert_eq!(flash.0, page);
        }

        /// A record of which some bits are missing is ignored, and those before it are not.
        #[test]
        fn a_torn_record_is_ignored(at in 40..400_u16, keep in any::<u64>()) {
            let page: Vec<u8> = (0..PAGE).map(|i| if i < PAGE - 36 { i as u8 } else { 0 }).collect();
            let mut flash = programmed(&page);
            let mut second = page.clone();
            (second[0], second[usize::from(at)]) = (1, !page[usize::from(at)]);
            append(&mut flash, &SCHEME.record(0, &second, &[at]).unwrap());
            let mut third = second.clone();
            (third[0], third[20]) = (2, 77);
            let mut record = SCHEME.record(1, &third, &[20, 7, 9]).unwrap();
            let mut bits = varve_rt::Rng::from_seed(keep);
            let whole = record.data.1.clone();
            record.data.1.iter_mut().for_each(|byte| *byte |= bits.next_u64() as u8);
            prop_assume!(record.data.1 != whole);
            append(&mut flash, &record);
            prop_assert_eq!(SCHEME.apply(&mut flash.0, &flash.1, false), Found { used: 2, torn: true });
            prop_assert_eq!(flash.0, second);
        }
    }

    #[test]
    fn records_lie_at_the_end_of_the_page() {
        let page = [7; PAGE];
        let record = SCHEME.record(0, &page, &[300, 5]).unwrap();
        assert_eq!(record.data, (PAGE - 36, vec![44, 1, 7, 5, 0, 7, 255, 255, 255, 255, 255, 255]));
        assert_eq!((record.spare.0, &record.spare.1[..4]), (16, &[7; 4][..]));
        assert_eq!(SCHEME.record(2, &page, &[]).unwrap().data.0, PAGE - 12);
        assert_eq!((SCHEME.area(), SCHEME.most_changes(), SCHEME.spare_bytes()), (36, 4, 40));
        assert_eq!(Scheme { n: 0, m: 48 }.most_changes(), 0, "without records nothing is appended");
        assert_eq!(Scheme { n: 2, m: 48 }.to_string(), "[2x48]");
    }
}
