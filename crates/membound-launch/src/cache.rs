//! Plans and other slow results on disk: a library is planned once, not once for each program.
//!
//! A file is written whole or not at all, ends in a checksum of everything before it, and its modification
//! time is updated at each use. When all files together exceed [`LIMIT_BYTES`], the least recently used are
//! deleted. Nothing here is an error: if the disk does not permit it, plans are made again.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use memmap2::Mmap;

/// Limit of all files together, in bytes; they may exceed it a little.
pub const LIMIT_BYTES: u64 = 2 << 30;
/// After this part of the limit was written, the total size is checked again.
const UNSEEN_PART: u64 = 64;
/// Bytes behind the content: its length, then its CRC-32, both little-endian.
const TRAILER_BYTES: usize = 16;
/// Files up to this size are copied. To unmap a file interrupts every processor that runs a thread of this process,
/// and a program with two hundred libraries has six hundred small files here.
const LARGEST_COPIED_BYTES: u64 = 64 << 10;
/// A file is marked as used again when its last mark is this old: each mark is written to the disk.
const MARK_INTERVAL: Duration = Duration::from_hours(1);

/// A directory of plans.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
    limit_bytes: u64,
    /// Bytes written since the last eviction.
    put_bytes: Arc<AtomicU64>,
}

/// A mapped file of the cache.
#[derive(Debug)]
pub(crate) struct Cached {
    file: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Copied(Vec<u8>),
    Mapped(Mmap),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for Cached {
    fn as_ref(&self) -> &[u8] {
        let file = self.file.as_ref();
        &file[..file.len() - TRAILER_BYTES]
    }
}

impl Cache {
    /// The cache at `directory`, which is created when something is stored.
    #[must_use]
    pub fn at(directory: PathBuf) -> Self {
        Self {
            directory,
            limit_bytes: LIMIT_BYTES,
            // Other processes may have stored some, so the first store checks.
            put_bytes: Arc::new(AtomicU64::new(LIMIT_BYTES)),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}.plan"))
    }

    /// The content stored under `key`, if it is there and intact.
    pub(crate) fn get(&self, key: &str) -> Option<Cached> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        let about = file.metadata().ok()?;
        let found = read(&file, about.len()).filter(|file| intact(file.as_ref()));
        if found.is_some() {
            let marked = about.modified().ok().and_then(|at| at.elapsed().ok());
            if marked.is_none_or(|age| age > MARK_INTERVAL) {
                // Only the order in which files go depends on it.
                let _ = file.set_modified(SystemTime::now());
            }
        } else {
            let _ = fs::remove_file(&path);
        }
        found.map(|file| Cached { file })
    }

    /// True if there is a file for `key`; its checksum is not checked.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.path(key).exists()
    }

    /// The content stored under `key`, parsed by `read`; otherwise the result of `make`, which is stored as
    /// `write` writes it.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get_or_make<T, E>(
        &self,
        key: &str,
        read: impl FnOnce(Cached) -> Option<T>,
        make: impl FnOnce() -> Result<T, E>,
        write: impl FnOnce(&T) -> Vec<u8>,
    ) -> Result<T, E> {
        if let Some(kept) = self.get(key).and_then(read) {
            return Ok(kept);
        }
        let made = make()?;
        self.put(key, &write(&made));
        Ok(made)
    }

    /// Stores `plan` under `key`, if possible.
    pub(crate) fn put(&self, key: &str, plan: &[u8]) {
        let written = fs::create_dir_all(&self.directory).and_then(|()| {
            let mut file = tempfile::Builder::new()
                .prefix(".plan-")
                .tempfile_in(&self.directory)?;
            file.write_all(plan)?;
            file.write_all(&trailer(plan))?;
            file.persist(self.path(key))?;
            Ok(())
        });
        if written.is_err() {
            return;
        }
        // Reading the directory of thousands of files takes longer than writing one.
        let length = plan.len() as u64;
        let put_bytes = self.put_bytes.fetch_add(length, Ordering::Relaxed) + length;
        if put_bytes > self.limit_bytes / UNSEEN_PART {
            self.put_bytes.store(0, Ordering::Relaxed);
            self.evict();
        }
    }

    /// Deletes the least recently used files while there is too much.
    fn evict(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(Result::ok)
            .filter(|entry| Path::new(&entry.file_name()).extension() == Some("plan".as_ref()))
            .filter_map(|entry| {
                let found = entry.metadata().ok()?;
                Some((found.modified().ok()?, found.len(), entry.path()))
            })
            .collect();
        files.sort_unstable_by(|one, other| other.cmp(one));
        let mut total = 0_u64;
        for (_, length, path) in files {
            total = total.saturating_add(length);
            if total > self.limit_bytes {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn trailer(plan: &[u8]) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[..8].copy_from_slice(&(plan.len() as u64).to_le_bytes());
    out[8..12].copy_from_slice(&crc32fast::hash(plan).to_le_bytes());
    out
}

fn intact(file: &[u8]) -> bool {
    file.split_last_chunk::<TRAILER_BYTES>()
        .is_some_and(|(plan, found)| *found == trailer(plan))
}

fn read(mut file: &File, length: u64) -> Option<Bytes> {
    if length <= LARGEST_COPIED_BYTES {
        let mut bytes = Vec::with_capacity(length as usize);
        file.read_to_end(&mut bytes).ok()?;
        return Some(Bytes::Copied(bytes));
    }
    // SAFETY: a file of the cache is never written after it got its name, and only the user that runs this process can
    // truncate it by hand.
    unsafe { Mmap::map(file) }.ok().map(Bytes::Mapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_got_back_and_what_is_damaged_is_not() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().join("plans"));
        assert!(cache.get("a").is_none());
        cache.put("a", b"some plan");
        assert_eq!(cache.get("a").unwrap().as_ref(), b"some plan");
        let large = vec![7; LARGEST_COPIED_BYTES as usize];
        cache.put("large", &large);
        assert_eq!(cache.get("large").unwrap().as_ref(), large);
        let path = cache.path("a");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() - 4 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert!(cache.get("a").is_none(), "byte {at}");
            assert!(!path.exists(), "a damaged file goes");
        }
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(cache.get("a").is_none());
        fs::write(&path, b"").unwrap();
        assert!(cache.get("a").is_none());
    }

    #[test]
    fn what_is_kept_is_made_once() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::at(place.path().to_owned());
        let read = |bytes: Cached| (bytes.as_ref() != b"other").then(|| bytes.as_ref().to_vec());
        let get = |made: Result<&[u8], ()>| {
            cache.get_or_make("a", read, || made.map(<[u8]>::to_vec), Vec::clone)
        };
        assert_eq!(get(Err(())), Err(()), "a failure is not kept");
        assert_eq!(get(Ok(b"first")).as_deref(), Ok(&b"first"[..]));
        assert_eq!(get(Err(())).as_deref(), Ok(&b"first"[..]));
        cache.put("a", b"other");
        assert_eq!(get(Ok(b"second")).as_deref(), Ok(&b"second"[..]));
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: place.path().to_owned(),
            limit_bytes: 3 * (100 + TRAILER_BYTES as u64),
            put_bytes: Arc::default(),
        };
        let before = SystemTime::now() - 2 * MARK_INTERVAL;
        for (age, key) in ["a", "b", "c"].into_iter().enumerate() {
            cache.put(key, &[0; 100]);
            let file = File::options().append(true).open(cache.path(key)).unwrap();
            file.set_modified(before + Duration::from_secs(age as u64))
                .unwrap();
        }
        assert!(cache.get("a").is_some(), "using it makes it the newest");
        cache.put("d", &[0; 100]);
        assert!(cache.get("b").is_none());
        for key in ["a", "c", "d"] {
            assert!(cache.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_no_error() {
        let cache = Cache::at("/proc/nowhere/plans".into());
        cache.put("a", b"x");
        assert!(cache.get("a").is_none());
    }
}
