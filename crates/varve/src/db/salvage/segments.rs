//! The rows of LSM keyspaces: what the lists of segments name, pages of segments that none names, and the log.

use super::{Names, Rows, SpaceMap, View};
use crate::btree::node::Node;
use crate::btree::{KIND_LEAF, LeafView};
use crate::error::Result;
use crate::index::{KeyspaceKind, salvage as index};
use crate::redo::{self, Record};
use crate::rows::ValueRef;
use std::collections::{BTreeMap, BTreeSet};
use varve_volume::page::{self, HEADER};
use varve_volume::{KeyspaceId, Lsn, PageId};

/// Records of LSM keyspaces in the log: start and end of their group, bytes.
pub(super) type Records = BTreeMap<KeyspaceId, Vec<(Lsn, Lsn, Box<[u8]>)>>;

/// Takes the records out of a group. One that cannot be read is told of where its page changes are redone.
pub(super) fn take(records: &mut Records, (start, end): (Lsn, Lsn), body: &[u8], page_size: usize) {
    for record in redo::decode(body, page_size, start).map_while(Result::ok) {
        if let Record::Index { keyspace, bytes } = record {
            records.entry(keyspace).or_default().push((start, end, bytes.into()));
        }
    }
}

/// Pages of segments by keyspace, in runs.
#[derive(Default)]
pub(super) struct Found(BTreeMap<KeyspaceId, Vec<(PageId, u64)>>);

impl Found {
    pub fn page(&mut self, keyspace: KeyspaceId, id: PageId) {
        let runs = self.0.entry(keyspace).or_default();
        assert!(runs.last().is_none_or(|(first, pages)| first.0 + *pages <= id.0), "pages come in ascending order");
        match runs.last_mut() {
            Some((first, pages)) if first.0 + *pages == id.0 => *pages += 1,
            _ => runs.push((id, 1)),
        }
    }
}

impl View {
    /// Keyspaces that are of segments, whatever the catalog knows.
    pub(super) fn lsm_keyspaces(&self, map: &SpaceMap, names: &Names) -> Result<BTreeSet<KeyspaceId>> {
        let is_lsm = |kind: &KeyspaceKind| matches!(kind, KeyspaceKind::Lsm(_));
        let known = names.known.values().filter(|entry| is_lsm(&entry.kind)).map(|entry| entry.id);
        let mut all: BTreeSet<KeyspaceId> = known.collect();
        if !names.complete {
            all.extend(self.records.keys().filter(|id| !names.known.contains_key(id)));
            self.scan(map, &mut |_, found| {
                all.extend(found.ok().filter(|bytes| index::is_segment(bytes)).map(page::keyspace));
                Ok(())
            })?;
        }
        Ok(all)
    }

    /// The rows of a keyspace's list of segments, and whether those are all.
    fn list(&self, map: &SpaceMap, keyspace: KeyspaceId, root: Option<PageId>) -> Result<(List, bool)> {
        let (mut list, mut todo, mut pages) = (List::new(), Vec::from_iter(root), 0);
        let mut complete = root.is_some();
        while let Some(id) = todo.pop() {
            pages += 1;
            let bytes = self.page(id)?.filter(|bytes| page::keyspace(bytes) == keyspace);
            let node = bytes.as_deref().and_then(|bytes| Node::parse(bytes).ok());
            complete &=
                node.filter(|_| pages <= self.store.pages()).is_some_and(|node| take_node(&node, &mut list, &mut todo));
        }
        if !complete {
            self.scan(map, &mut |_, found| {
                let leaf = |bytes: &&[u8]| page::kind(bytes) == KIND_LEAF && page::keyspace(bytes) == keyspace;
                if let Some(node) = found.ok().filter(leaf).and_then(|bytes| Node::parse(bytes).ok()) {
                    take_node(&node, &mut list, &mut Vec::new());
                }
                Ok(())
            })?;
        }
        Ok((list, complete))
    }
}

type List = BTreeMap<Vec<u8>, Vec<u8>>;

/// Takes up a node of a list; whether all of it could be read.
fn take_node(node: &Node<'_>, list: &mut List, children: &mut Vec<PageId>) -> bool {
    if node.level() > 0 {
        return (0..=node.count()).all(|i| node.child(i).map(|id| children.push(PageId(id))).is_ok());
    }
    let leaf = LeafView::new(*node, PageId(0));
    (0..node.count()).all(|i| match (node.key(i), leaf.value(i)) {
        (Ok(key), Ok(ValueRef::Inline(value))) => {
            list.insert(key, value.to_vec());
            true
        }
        _ => false,
    })
}

impl Rows<'_> {
    /// Gives the rows of all LSM keyspaces.
    pub(super) fn segments(
        &mut self,
        map: &SpaceMap,
        keyspaces: &BTreeSet<KeyspaceId>,
        mut found: Found,
    ) -> Result<()> {
        for id in keyspaces {
            let Some(name) = self.names.of(*id) else { continue };
            let remains = self.remains(map, *id, &name, found.0.remove(id).unwrap_or_default())?;
            let view = self.view;
            let mut notes = Vec::new();
            let mut lost = |what: String| notes.push(format!("{name}: {what}"));
            index::remaining(remains, &|id| view.page(id), &mut lost, &mut |key, value| {
                self.row(&name, *id, key, ValueRef::Inline(value))
            })?;
            self.report.notes.append(&mut notes);
        }
        Ok(())
    }

    fn remains(
        &mut self,
        map: &SpaceMap,
        id: KeyspaceId,
        name: &str,
        found: Vec<(PageId, u64)>,
    ) -> Result<index::Remains> {
        let store = &*self.view.store;
        let root = self.names.known.get(&id).map(|entry| entry.root);
        let (list, mut complete) = self.view.list(map, id, root)?;
        let rows: Vec<(Vec<u8>, Vec<u8>)> = list.into_iter().collect();
        let mut segments = Vec::new();
        for of_one in rows.chunk_by(|(a, _), (b, _)| a.get(..8) == b.get(..8)) {
            match index::listed(of_one, id, root.unwrap_or_default()) {
                Ok(listed) => segments.extend(listed.into_iter().map(|(_, segment)| segment)),
                // What it listed is looked for below.
                Err(_) => complete = false,
            }
        }
        let mut strays = Vec::new();
        if !complete {
            self.report.notes.push(format!(
                "{name}: the list of its segments is damaged: those that it does not name any more are looked for in \
                 all pages. A block is lost where such a segment goes on at another place, and what was deleted may \
                 come back"
            ));
            let named = segments.iter().flat_map(|segment| &segment.runs).copied();
            strays = without(&found, &BTreeMap::from_iter(named));
        }
        Ok(index::Remains {
            keyspace: id,
            usable: store.usable_bytes(id).min(store.page_size() - HEADER),
            segments,
            strays,
            records: self.view.records.get(&id).cloned().unwrap_or_default(),
        })
    }
}

/// The runs without the pages of others (first page, pages).
fn without(runs: &[(PageId, u64)], others: &BTreeMap<PageId, u64>) -> Vec<(PageId, u64)> {
    let within = |id: u64| others.range(..=PageId(id)).next_back().is_some_and(|(first, pages)| id < first.0 + pages);
    let mut left = Found::default();
    for id in runs.iter().flat_map(|(first, pages)| first.0..first.0 + pages).filter(|id| !within(*id)) {
        left.page(KeyspaceId(0), PageId(id));
    }
    left.0.remove(&KeyspaceId(0)).unwrap_or_default()
}
