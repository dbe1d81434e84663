//! Identities of files.
//!
//! Without a build-id an identity is a hash of all text, which takes a tenth of a second for a large file. It is
//! remembered as long as this process runs, and on disk.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use membound_rewrite::image::{self, Identity, Image};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::cache::Cache;

/// Identifies a file on this machine, and distinguishes its versions before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    device: u64,
    pub(crate) inode: u64,
    length: u64,
    changed_ns: i128,
}

type Hash = [u8; 32];

/// Hashes that this process has computed or read.
static HASHES: Mutex<FxHashMap<FileKey, Hash>> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));

impl FileKey {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            length: found.len(),
            changed_ns: i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()),
        }
    }

    /// Name of its hash in a cache.
    fn name(&self) -> String {
        let Self {
            device,
            inode,
            length,
            changed_ns,
        } = self;
        format!("file-{device:x}-{inode:x}-{length:x}-{changed_ns:x}")
    }
}

/// The identity of a file with these bytes, if it takes no long time.
///
/// # Errors
/// If the file is malformed or of a kind that is not patched.
pub(crate) fn at_once(
    key: &FileKey,
    bytes: &[u8],
    cache: Option<&Cache>,
) -> Result<Option<Identity>, image::Error> {
    let build_id = Image::build_id(bytes)?;
    Ok(build_id.or_else(|| remembered(key, cache).map(Identity::TextHash)))
}

/// The identity of a file with these bytes, which is not known [`at_once`]; it is remembered.
///
/// # Errors
/// If the file is malformed or of a kind that is not patched.
pub(crate) fn compute(
    key: &FileKey,
    bytes: &[u8],
    cache: Option<&Cache>,
) -> Result<Identity, image::Error> {
    let identity = Image::identify(bytes)?;
    if let Identity::TextHash(hash) = identity {
        remember(key, hash);
        if let Some(cache) = cache {
            cache.put(&key.name(), &hash);
        }
    }
    Ok(identity)
}

/// The identity of an open file, if this process has computed it because the file has no build-id.
#[must_use]
pub fn remembered_identity(file: &File) -> Option<Identity> {
    let key = FileKey::of(&file.metadata().ok()?);
    remembered(&key, None).map(Identity::TextHash)
}

fn hashes() -> MutexGuard<'static, FxHashMap<FileKey, Hash>> {
    HASHES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remember(key: &FileKey, hash: Hash) {
    hashes().insert(*key, hash);
}

fn remembered(key: &FileKey, cache: Option<&Cache>) -> Option<Hash> {
    let known = hashes().get(key).copied();
    known.or_else(|| kept(key, cache?))
}

/// The hash on disk.
fn kept(key: &FileKey, cache: &Cache) -> Option<Hash> {
    let hash = cache.get(&key.name())?.as_ref().try_into().ok()?;
    remember(key, hash);
    Some(hash)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_hash_is_remembered_until_the_file_changes() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache"));
        let mut file = tempfile::tempfile_in(place.path()).unwrap();
        file.write_all(b"text").unwrap();
        let key = FileKey::of(&file.metadata().unwrap());
        assert_eq!(remembered(&key, Some(&cache)), None);
        cache.put(&key.name(), &[7; 32]);
        assert_eq!(remembered(&key, Some(&cache)), Some([7; 32]));
        assert_eq!(
            remembered_identity(&file),
            Some(Identity::TextHash([7; 32]))
        );
        file.write_all(b"more").unwrap();
        assert_eq!(remembered_identity(&file), None);
    }

    /// The agent with a build-id of an unknown kind.
    fn without_build_id() -> Vec<u8> {
        const NAME: &[u8] = b"GNU\0";
        const KIND: &[u8] = &3_u32.to_le_bytes();
        let mut bytes = crate::AGENT.to_vec();
        let mut notes = (4..bytes.len()).filter(|at| {
            let note = bytes.get(at - KIND.len()..at + NAME.len());
            note.is_some_and(|note| note == [KIND, NAME].concat())
        });
        if let Some(at) = notes.next() {
            bytes[at - KIND.len()] = 99;
        }
        bytes
    }

    #[test]
    fn the_identity_of_a_file_without_a_build_id_is_computed_once() {
        if crate::AGENT.is_empty() {
            membound_testkit::skipped("there is no agent for this machine");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("cache"));
        let bytes = without_build_id();
        let key = FileKey {
            device: 1,
            inode: 2,
            length: bytes.len() as u64,
            changed_ns: 3,
        };
        assert_eq!(at_once(&key, &bytes, Some(&cache)).unwrap(), None);
        let identity = compute(&key, &bytes, Some(&cache)).unwrap();
        assert!(matches!(identity, Identity::TextHash(_)));
        // Another process has it from disk.
        hashes().remove(&key);
        assert_eq!(at_once(&key, &bytes, None).unwrap(), None);
        let known = at_once(&key, &bytes, Some(&cache)).unwrap();
        assert_eq!(known, Some(identity));
    }
}
