//! The parsers of bytes that come from devices, by themselves, for fuzzing: nothing may make them panic.

use crate::btree::edit::{Builder, Shape};
use crate::btree::node::Node;
use crate::redo::{self, Record};
use varve_volume::{KeyspaceId, PageId, page};

/// What a parser made of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Refused at first sight.
    Refused,
    /// Its outline is right, what is in it is not.
    Unsound,
    /// Accepted.
    Sound,
}

/// Looks at every part of a page as a node of a tree.
pub fn node(bytes: &[u8]) -> Verdict {
    let Ok(node) = Node::parse(bytes) else { return Verdict::Refused };
    // Whatever `parse` lets through can be asked anything.
    let mut cells = Ok(());
    for i in 0..node.count() {
        let cell = if node.level() == 0 { node.leaf_cell(i).map(drop) } else { node.child(i + 1).map(drop) };
        cells = cells.and(cell).and(node.key(i).map(drop));
    }
    let _ = (node.search(b"key"), node.child_for(b"key"), node.covers(b"key"));
    if node.validate().is_err() {
        return Verdict::Unsound;
    }
    cells.expect("a sound node has sound cells");
    let mut last: Option<Vec<u8>> = None;
    for i in 0..node.count() {
        let key = node.key(i).expect("sound");
        assert!(last.is_none_or(|last| last < key) && node.covers(&key), "keys ascend between the fences");
        assert_eq!(node.search(&key), Ok((i, true)), "every key is found");
        last = Some(key);
    }
    Verdict::Sound
}

/// A leaf and an inner node, sealed.
pub fn nodes(page_size: usize) -> Vec<Vec<u8>> {
    let made = |level: u8| {
        let mut bytes = vec![0; page_size];
        let shape =
            Shape { level, low: b"key 1", high: Some(b"key 9"), leftmost: u64::from(level) * 5, end: page_size };
        let mut builder = Builder::new(&mut bytes, &shape, b"key ");
        for n in 2u64..8 {
            let key = format!("key {n} with a tail");
            let value = [&5u16.to_le_bytes()[..], b"value"].concat();
            let payload = if level == 0 { value } else { n.to_le_bytes().to_vec() };
            builder.push(key.as_bytes(), &payload);
        }
        builder.finish();
        page::set_keyspace(&mut bytes, KeyspaceId(7));
        page::seal(&mut bytes, PageId(7));
        bytes
    };
    vec![made(0), made(1)]
}

/// Decodes the body of a log group and makes its changes to a page.
pub fn log_body(body: &[u8], page_size: usize) -> Verdict {
    let mut page = vec![0; page_size];
    let mut verdict = Verdict::Sound;
    for record in redo::decode(body, page_size, 1) {
        match record {
            Ok(Record::Ops { ops, page: id, .. }) if redo::apply_ops(&mut page, ops, id, 1).is_err() => {
                verdict = Verdict::Unsound;
            }
            Ok(Record::Image { head, hole, tail, .. }) => redo::apply_image(&mut page, head, hole, tail),
            Ok(_) => {}
            Err(_) => return Verdict::Refused,
        }
    }
    verdict
}

/// A body with changes of a page, and a whole one.
pub fn log_bodies(page_size: usize) -> Vec<Vec<u8>> {
    let (mut ops, mut body) = (Vec::new(), Vec::new());
    redo::push_write(&mut ops, 100, b"bytes");
    redo::push_shift(&mut ops, 200, 300, 50);
    redo::push_ops_record(&mut body, PageId(300), KeyspaceId(7), 99, &ops);
    let mut image = vec![0; page_size];
    image[..200].fill(3);
    redo::push_image_record(&mut body, PageId(5), &image, redo::zero_hole(&image));
    vec![body]
}
