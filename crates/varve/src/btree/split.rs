//! Where to divide a node, and joining two: pure functions on node bytes. The tree does the latching around them.

use super::edit::{self, Shape, build, shape_of};
use super::node::*;
use crate::page::PageEdit;
use std::ops::Range;
use varve_volume::page;

/// How a node is to be divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Leaf: slots from here on go right. Inner: this slot's key goes up, its child becomes the right node's leftmost.
    pub at: usize,
    /// Low fence of the right node.
    pub separator: Vec<u8>,
}

/// The shortest key above `low` and not above `high` (`low < high`).
pub(crate) fn separator(low: &[u8], high: &[u8]) -> Vec<u8> {
    assert!(low < high, "what lies between two keys");
    let between = high[..(common(low, high) + 1).min(high.len())].to_vec();
    debug_assert!(
        low < &between[..] && &between[..] <= high,
        "a separator is above the one key, and not above the other"
    );
    between
}

/// First slot of the upper half of a node, by bytes.
fn middle(node: &Node<'_>) -> Result<usize, Damage> {
    let mut sizes = Vec::with_capacity(node.count());
    for i in 0..node.count() {
        sizes.push(SLOT + node.cell_len(i)?);
    }
    let (half, mut sum) = (sizes.iter().sum::<usize>() / 2, 0);
    let at = sizes.iter().position(|s| {
        sum += s;
        sum > half
    });
    Ok(at.unwrap_or(0))
}

/// A node to be: its shape, and the cells of an old node that go there.
type Half<'a> = (Shape<'a>, (Node<'a>, Range<usize>));

/// The shapes and cells of the two halves.
fn halves<'a>(node: &Node<'a>, plan: &'a Plan) -> Result<[Half<'a>; 2], Damage> {
    let leaf = node.level() == 0;
    let leftmost = if leaf { 0 } else { node.child(plan.at + 1)? };
    let old = shape_of(node);
    let from = if leaf { plan.at } else { plan.at + 1 };
    assert!(from <= node.count(), "a node is divided at one of its slots");
    if node.low() == &plan.separator[..] || !node.covers(&plan.separator) {
        return Err(Damage("a separator that leaves one side without keys"));
    }
    let left = (Shape { high: Some(&plan.separator), ..old }, (*node, 0..plan.at));
    Ok([left, (Shape { low: &plan.separator, leftmost, ..old }, (*node, from..node.count()))])
}

/// Whether both halves fit their pages with their new fences.
fn feasible(node: &Node<'_>, plan: &Plan) -> Result<bool, Damage> {
    for (shape, part) in halves(node, plan)? {
        if !edit::fits(&shape, &[part])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The feasible division nearest to `start`, which `plan` makes for a slot in `from..to`.
fn nearest(
    node: &Node<'_>,
    start: usize,
    slots: Range<usize>,
    plan: impl Fn(usize) -> Result<Plan, Damage>,
) -> Result<Option<Plan>, Damage> {
    let start = start.clamp(slots.start, slots.end.max(1) - 1);
    for distance in 0..slots.len() {
        for at in [start.checked_sub(distance), start.checked_add(distance)].into_iter().flatten() {
            if slots.contains(&at) {
                let p = plan(at)?;
                if feasible(node, &p)? {
                    return Ok(Some(p));
                }
            }
        }
    }
    Ok(None)
}

/// Where to divide a leaf in which room for `key` is wanted. None when no division could help (nothing but the key
/// itself is there).
///
/// Runs of ascending (or descending) inserts, told by the slot of the last insert, divide at the insert position, so
/// that what they leave behind stays full; else the node is halved.
pub(crate) fn plan_leaf(node: &Node<'_>, key: &[u8], room: usize) -> Result<Option<Plan>, Damage> {
    let (pos, found) = node.search(key)?;
    let count = node.count();
    if count == 0 || (found && count == 1) {
        return Ok(None);
    }
    let spare = node.end() - SLOTS;
    let size = |slots: Range<usize>| slots.map(|i| node.cell_len(i).map(|l| l + SLOT)).sum::<Result<usize, _>>();
    if !found && pos > 0 && (pos == count || node.hint() + 1 == pos) {
        let plan = Plan { at: pos, separator: separator(&node.key(pos - 1)?, key) }; // ascending: the key begins the right node
        if size(pos..count)? + plan.separator.len() + room <= spare && feasible(node, &plan)? {
            return Ok(Some(plan));
        }
    }
    if !found && pos < count && (pos == 0 || node.hint() == pos) {
        let plan = Plan { at: pos, separator: separator(key, &node.key(pos)?) }; // descending: the key ends the left node
        if size(0..pos)? + plan.separator.len() + room <= spare && feasible(node, &plan)? {
            return Ok(Some(plan));
        }
    }
    if count == 1 {
        return Ok(None);
    }
    nearest(node, middle(node)?, 1..count, |at| {
        Ok(Plan { at, separator: separator(&node.key(at - 1)?, &node.key(at)?) })
    })
}

/// Dividing a leaf behind all that it holds, so that it stays as it is but for its high fence, and `room` bytes of
/// cells fit the right node. Looks at no cell but the first and the last. None where that cannot be.
pub(crate) fn plan_append(node: &Node<'_>, separator: &[u8], room: usize) -> Result<Option<Plan>, Damage> {
    let count = node.count();
    let fences = separator.len() + node.high().map_or(0, <[u8]>::len);
    let fits = node.gap() >= separator.len() && fences + room <= node.end() - SLOTS;
    if node.level() > 0 || !fits || node.low() == separator || !node.covers(separator) {
        return Ok(None);
    }
    if count > 0 {
        let (first, last) = (node.key(0)?, node.key(count - 1)?);
        if last < first || last[..] >= *separator {
            return Ok(None);
        }
    }
    Ok(Some(Plan { at: count, separator: separator.to_vec() }))
}

/// Dividing a leaf so that `key`, which it covers, becomes the low fence of the right node. None when the fences do not
/// fit.
pub(crate) fn plan_boundary(node: &Node<'_>, key: &[u8]) -> Result<Option<Plan>, Damage> {
    let plan = Plan { at: node.search(key)?.0, separator: key.to_vec() };
    Ok(if feasible(node, &plan)? { Some(plan) } else { None })
}

/// Where to divide an inner node in which a separator like `key` is to be inserted. None when it has no separator.
pub(crate) fn plan_inner(node: &Node<'_>, key: &[u8]) -> Result<Option<Plan>, Damage> {
    let count = node.count();
    let (pos, _) = node.search(key)?;
    let ascending = count > 1 && pos == count && node.hint() + 1 == count;
    let start = if ascending { count - 1 } else { middle(node)? };
    nearest(node, start, 0..count, |at| Ok(Plan { at, separator: node.key(at)? }))
}

/// Fills the right node of a division on a fresh page.
pub(crate) fn fill_right(bytes: &mut [u8], old: &Node<'_>, plan: &Plan) -> Result<(), Damage> {
    let [_, (shape, part)] = halves(old, plan)?;
    if old.level() == 0 && plan.at == old.count() && old.high().is_none() {
        // An ascending load: what the full node's keys share, those of the next one will likely share. (The full node
        // may be one that has yet to be filled: its fences say it then.) The last four bytes of a key have room in its
        // slot anyway, and are those in which the next keys will differ.
        let first = if old.count() >= 16 { old.key(0)? } else { old.low().to_vec() };
        let prefix = common(&first, &plan.separator).min(first.len().saturating_sub(4));
        edit::Builder::new(bytes, &shape, &plan.separator[..prefix]).finish();
        return Ok(());
    }
    build(bytes, &shape, &[part], None)
}

/// Cuts the left node of a division down. The node was validated.
pub(crate) fn cut_left(page: &mut impl PageEdit, plan: &Plan) -> Result<(), Damage> {
    let node = Node::parse(page.bytes())?;
    if plan.at == node.count() && node.gap() >= plan.separator.len() {
        return edit::set_high(page, &plan.separator);
    }
    let copy = page.bytes().to_vec();
    let old = Node::parse(&copy)?;
    let [(shape, part), _] = halves(&old, plan)?;
    let mut built = Ok(());
    page.image(|bytes| built = build(bytes, &shape, &[part], None));
    built
}

/// Makes the page an empty leaf.
pub(crate) fn init_leaf(bytes: &mut [u8], low: &[u8], high: Option<&[u8]>, end: usize) {
    let shape = Shape { level: 0, low, high, leftmost: 0, end };
    edit::Builder::new(bytes, &shape, &low[..shape.base()]).finish();
    page::set_kind(bytes, super::leaf::KIND_LEAF);
}

/// Whether two neighbours fit one node and leave an eighth of it free (so that the next insert does not divide it
/// again).
pub(crate) fn can_join(left: &Node<'_>, right: &Node<'_>) -> Result<bool, Damage> {
    if left.level() != right.level() || left.high() != Some(right.low()) {
        return Err(Damage("neighbouring nodes do not meet"));
    }
    let shape = Shape { high: right.high(), ..shape_of(left) };
    let (extra, next) = if left.level() > 0 { (SLOT + 8 + right.low().len(), Some(right.low())) } else { (0, None) };
    let (_, size) = edit::measure(&shape, &[(*left, 0..left.count()), (*right, 0..right.count())], next)?;
    let all = shape.end - SLOTS;
    Ok(size + extra <= all - all / 8)
}

/// Moves all of `right` into `left`. Both were validated and `can_join` said yes.
pub(crate) fn join(page: &mut impl PageEdit, right: &Node<'_>) -> Result<(), Damage> {
    let copy = page.bytes().to_vec();
    let left = Node::parse(&copy)?;
    let shape = Shape { high: right.high(), ..shape_of(&left) };
    let next = (left.level() > 0).then_some(right.low());
    let mut built = Ok(());
    page.image(|bytes| built = build(bytes, &shape, &[(left, 0..left.count()), (*right, 0..right.count())], next));
    built?;
    if left.level() > 0 {
        // Between the two comes the separator, with the right node's leftmost child.
        edit::insert(page, right.low(), left.count(), [&right.child(0)?.to_le_bytes(), &[]])?;
    }
    Ok(())
}
