//! Where the bytes of programmed pages are kept. Pages are numbered through the device; erased pages take no space.
//!
//! Pages are shared between a store and its forks, and between a page and its copy, until one of them changes.
//!
//! Invariants: a group counts its pages, and an empty one is not kept; `bytes` is the sum of all pages' sizes.

use crate::Sparse;
use std::sync::Arc;

/// Bytes of a programmed page.
#[derive(Clone, Debug)]
pub struct PageBytes {
    /// Data; what the array holds past its end is erased (all ones). Absent where only the spare area is kept.
    pub data: Option<Arc<[u8]>>,
    /// Spare area, likewise.
    pub spare: Arc<[u8]>,
}

/// Storage of page contents. An implementation need not be fast at `fork`, but must be correct: the fork and the
/// original never see each other's later changes.
pub trait PageContents: Send + Sync {
    /// The bytes of a programmed page; `None` where it is erased.
    fn get(&self, page: u32) -> Option<PageBytes>;
    /// Sets (or, with `None`, forgets) the bytes of a page.
    fn set(&mut self, page: u32, bytes: Option<PageBytes>);
    /// Forgets the bytes of the pages of a block.
    fn erase(&mut self, first: u32, count: u32) {
        (first..first + count).for_each(|page| self.set(page, None));
    }
    /// A block has had so many erases, and may be bad: for stores that outlive the array.
    fn note(&mut self, _block: u32, _erases: u32, _bad: bool) {}
    /// A second store with the same bytes.
    fn fork(&self) -> Box<dyn PageContents>;
    /// Memory in use, bytes, as far as it is known.
    fn resident_bytes(&self) -> u64;
}

/// Pages in memory, in groups shared copy-on-write.
#[derive(Clone)]
pub struct MemPages {
    groups: Vec<Option<Arc<Group>>>,
    bytes: u64,
}

const GROUP: usize = 64;

#[derive(Clone)]
struct Group {
    pages: [Option<PageBytes>; GROUP],
    used: usize,
}

impl MemPages {
    /// Room for `pages` pages.
    pub fn new(pages: u32) -> MemPages {
        MemPages { groups: vec![None; (pages as usize).div_ceil(GROUP)], bytes: 0 }
    }
}

fn size(bytes: &PageBytes) -> u64 {
    (bytes.data.as_ref().map_or(0, |d| d.len()) + bytes.spare.len()) as u64
}

impl PageContents for MemPages {
    fn get(&self, page: u32) -> Option<PageBytes> {
        self.groups[page as usize / GROUP].as_ref()?.pages[page as usize % GROUP].clone()
    }

    fn set(&mut self, page: u32, bytes: Option<PageBytes>) {
        let slot = &mut self.groups[page as usize / GROUP];
        if bytes.is_none() && slot.is_none() {
            return;
        }
        let empty = || Arc::new(Group { pages: [const { None }; GROUP], used: 0 });
        let group = Arc::make_mut(slot.get_or_insert_with(empty));
        self.bytes += bytes.as_ref().map_or(0, size);
        group.used += usize::from(bytes.is_some());
        if let Some(old) = std::mem::replace(&mut group.pages[page as usize % GROUP], bytes) {
            assert!(self.bytes >= size(&old) && group.used > 0, "what is taken away was counted");
            self.bytes -= size(&old);
            group.used -= 1;
        }
        assert!(group.used <= GROUP);
        if group.used == 0 {
            *slot = None;
        }
    }

    fn fork(&self) -> Box<dyn PageContents> {
        Box::new(self.clone())
    }

    fn resident_bytes(&self) -> u64 {
        self.bytes
    }
}

/// Pages whose data are kept in a [`Sparse`] store, which may have a backing file: for drives larger than memory. Spare
/// areas stay in memory.
pub struct SparsePages {
    data: Sparse,
    page_bytes: usize,
    /// Spare areas of programmed pages; the data here are only a mark that the page has some, and how many bytes.
    spares: MemPages,
}

impl SparsePages {
    /// Room for `pages` pages of `page_bytes` in `data`, which must be empty.
    pub fn new(pages: u32, page_bytes: u32, data: Sparse) -> SparsePages {
        SparsePages { data, page_bytes: page_bytes as usize, spares: MemPages::new(pages) }
    }

    fn place(&self, page: u32) -> u64 {
        u64::from(page) * self.page_bytes as u64
    }
}

impl PageContents for SparsePages {
    fn get(&self, page: u32) -> Option<PageBytes> {
        let found = self.spares.get(page)?;
        let data = found.data.map(|length| {
            let length = u32::from_le_bytes(length[..].try_into().expect("four bytes"));
            let mut data = vec![0; length as usize];
            self.data.read(self.place(page), &mut data);
            data.into()
        });
        Some(PageBytes { data, spare: found.spare })
    }

    fn set(&mut self, page: u32, bytes: Option<PageBytes>) {
        let place = self.place(page);
        let marked = bytes.map(|b| {
            let data = b.data.map(|data| {
                assert!(data.len() <= self.page_bytes, "a page's data fit in a page");
                self.data.write(place, &data);
                Arc::from(&(data.len() as u32).to_le_bytes()[..])
            });
            PageBytes { data, spare: b.spare }
        });
        let had = || self.spares.get(page).is_some_and(|b| b.data.is_some());
        if marked.as_ref().is_none_or(|b| b.data.is_none()) && had() {
            self.data.zero(place, self.page_bytes as u64);
        }
        self.spares.set(page, marked);
    }

    fn fork(&self) -> Box<dyn PageContents> {
        let (data, spares) = (self.data.clone(), self.spares.clone());
        Box::new(SparsePages { data, page_bytes: self.page_bytes, spares })
    }

    fn resident_bytes(&self) -> u64 {
        self.data.in_memory() + self.spares.resident_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    /// Both kinds of store, and their forks, against each other.
    #[test]
    fn stores_agree_and_forks_part() {
        let dir = std::env::temp_dir();
        let backed = Sparse::backed(&dir, 8 * crate::sparse::CHUNK as u64).expect("a file");
        let mut pairs: Vec<(Box<dyn PageContents>, Box<dyn PageContents>)> =
            vec![(Box::new(MemPages::new(300)), Box::new(SparsePages::new(300, 4096, backed)))];
        let mut rng = Rng::from_seed(9);
        let plain = |b: Option<PageBytes>| b.map(|b| (b.data.map(|d| d.to_vec()), b.spare.to_vec()));
        for step in 0..6000_u32 {
            let at = rng.below(pairs.len() as u64) as usize;
            let page = rng.below(300) as u32;
            let bytes = (!rng.one_in(3)).then(|| {
                let length = [0, 100, 4096][rng.below(3) as usize];
                let data = (!rng.one_in(5)).then(|| Arc::from(vec![step as u8; length]));
                PageBytes { data, spare: Arc::from(&step.to_le_bytes()[..]) }
            });
            let (a, b) = &mut pairs[at];
            a.set(page, bytes.clone());
            b.set(page, bytes);
            if step % 1500 == 700 {
                let fork = (a.fork(), b.fork());
                pairs.push(fork);
            }
        }
        for (a, b) in &pairs {
            (0..300).for_each(|page| assert_eq!(plain(a.get(page)), plain(b.get(page)), "page {page}"));
            assert!(a.resident_bytes() > 0 && b.resident_bytes() > 0);
        }
    }
}
