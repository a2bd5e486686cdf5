//! Where the bytes of programmed pages are kept. Pages are numbered through the device; erased pages take no space.
//!
//! Pages are shared between a store and its forks, and between a page and its copy, until one of them changes.

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
pub trait PageStore: Send + Sync {
    /// The bytes of a programmed page; `None` where it is erased.
    fn get(&self, page: u32) -> Option<PageBytes>;
    /// Sets (or, with `None`, forgets) the bytes of a page.
    fn set(&mut self, page: u32, bytes: Option<PageBytes>);
    /// A second store with the same bytes.
    fn fork(&self) -> Box<dyn PageStore>;
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

impl PageStore for MemPages {
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
            self.bytes -= size(&old);
            group.used -= 1;
        }
        if group.used == 0 {
            *slot = None;
        }
    }

    fn fork(&self) -> Box<dyn PageStore> {
        Box::new(self.clone())
    }

    fn resident_bytes(&self) -> u64 {
        self.bytes
    }
}
