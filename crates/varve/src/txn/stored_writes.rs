//! The writes of a large commit as bytes: one after the other in the order of their paths, each behind its length.

use super::spill::{Version, parts};
use crate::error::Result;
use crate::rows::NewValue;
use varve_volume::KeyspaceId;

/// Bytes of a write's length.
const LENGTH: usize = 4;

/// Bytes that a write takes.
pub(super) fn len(version: &Version) -> usize {
    LENGTH + version.len()
}

/// Appends a write.
pub(super) fn encode(version: &Version, into: &mut Vec<u8>) {
    let mut record = Vec::with_capacity(version.len());
    version.encode(&mut record);
    assert_eq!(record.len(), version.len(), "a write is as long as it says");
    into.extend_from_slice(&(record.len() as u32).to_le_bytes());
    into.extend_from_slice(&record);
}

/// What comes next of the bytes that are there.
pub(super) enum Found {
    Write(Version),
    /// Not all of a write is there yet; behind the last, nothing is.
    More,
    /// What is there is no write.
    Damage,
}

/// What is done with a write: its keyspace, key and value (none: the key is deleted).
type EachWrite<'a> = dyn FnMut(KeyspaceId, &[u8], Option<NewValue<'_>>) -> Result<()> + 'a;

/// Takes the bytes apart as they come, in pieces of any length.
#[derive(Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    /// Bytes of writes that were taken.
    at: usize,
}

impl Decoder {
    /// Where the bytes that come next are appended.
    pub fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.at);
        self.at = 0;
        &mut self.bytes
    }

    /// Whether all bytes were taken.
    pub fn is_empty(&self) -> bool {
        debug_assert!(self.at <= self.bytes.len(), "what was taken was there");
        self.at == self.bytes.len()
    }

    /// Takes the next write.
    pub(super) fn next(&mut self) -> Found {
        let left = &self.bytes[self.at..];
        let Some((length, behind)) = left.split_first_chunk::<LENGTH>() else { return Found::More };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(record) = behind.get(..length) else { return Found::More };
        let mut version = Version::default();
        match version.decode(record) {
            Some(()) => {
                self.at += LENGTH + length;
                Found::Write(version)
            }
            None => Found::Damage,
        }
    }

    /// Takes all writes that are there; whether they can be read.
    ///
    /// # Errors
    /// What `each` returns.
    pub fn each(&mut self, each: &mut EachWrite<'_>) -> Result<bool> {
        loop {
            let version = match self.next() {
                Found::Write(version) => version,
                Found::More => return Ok(true),
                Found::Damage => return Ok(false),
            };
            let (keyspace, key) = parts(&version.path);
            match version.new_value() {
                Ok(value) => each(keyspace, key, value)?,
                Err(_) => return Ok(false),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    /// A write that puts, or deletes where there is no value.
    fn record(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
        let path = [&7u32.to_be_bytes()[..], key].concat();
        let tag = u8::from(value.is_some());
        [&(path.len() as u16).to_le_bytes()[..], &[tag], &path, value.unwrap_or_default()].concat()
    }

    fn decoded(decoder: &mut Decoder, rows: &mut Vec<(Vec<u8>, Option<Vec<u8>>)>) -> bool {
        let mut each = |keyspace: KeyspaceId, key: &[u8], value: Option<NewValue<'_>>| {
            assert_eq!(keyspace, KeyspaceId(7));
            let value = value.map(|value| match value {
                NewValue::Bytes(bytes) => bytes.to_vec(),
                NewValue::Stored(_) => unreachable!("none is long"),
            });
            rows.push((key.to_vec(), value));
            Ok(())
        };
        decoder.each(&mut each).unwrap()
    }

    #[test]
    fn writes_come_back_in_pieces_of_any_length() {
        let mut rng = Rng::from_seed(1);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for n in 0..200u32 {
            let value = (n % 3 > 0).then(|| vec![n as u8; rng.below(300) as usize]);
            let mut version = Version::default();
            version.decode(&record(&n.to_be_bytes(), value.as_deref())).unwrap();
            let before = bytes.len();
            encode(&version, &mut bytes);
            assert_eq!(bytes.len() - before, len(&version));
            expected.push((n.to_be_bytes().to_vec(), value));
        }
        let (mut decoder, mut rows, mut rest) = (Decoder::default(), Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let part = rest.split_off(..rest.len().min(1 + rng.below(700) as usize)).unwrap();
            decoder.room().extend_from_slice(part);
            assert!(decoded(&mut decoder, &mut rows));
        }
        assert!(decoder.is_empty() && rows == expected);
    }

    #[test]
    fn what_is_no_write_is_damage_and_what_is_cut_is_not_taken() {
        let mut rows = Vec::new();
        let mut cut = Decoder::default();
        cut.room().extend_from_slice(&[9, 0, 0, 0, 1]);
        assert!(decoded(&mut cut, &mut rows) && !cut.is_empty());
        let mut wrong = Decoder::default();
        wrong.room().extend_from_slice(&[3, 0, 0, 0, 200, 0, 1]);
        assert!(!decoded(&mut wrong, &mut rows) && rows.is_empty(), "a path is longer than its record");
    }
}
