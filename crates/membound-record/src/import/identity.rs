//! Decides whether a file on this machine is the recorded one.
//!
//! The build-id decides. Without one, the inode number decides on the machine that recorded, and nothing does
//! elsewhere: such files are read, and the run says so.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use membound_import::About;
use membound_platform::Root;
use membound_rewrite::image::{Identity, Image};
use membound_symbolize::Symbols;
use rustc_hash::FxHashMap;

/// Whether a file on this machine is the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the recorded one.
    Same,
    /// It may be the recorded one: there is nothing to compare.
    Unproven,
    /// It is another file, or cannot be compared; the text follows its path in a message.
    Other(String),
    /// There is no such file here.
    Absent,
}

/// Key of a recorded file: path, build-id, inode.
type Recorded = (Vec<u8>, Option<String>, Option<u64>);

/// Verdicts on files; each file is examined once.
#[derive(Debug, Default)]
pub(super) struct Identities {
    recorded: FxHashMap<Vec<u8>, String>,
    is_this_host: bool,
    is_own_kernel: bool,
    /// The recorded architecture, if it is not this machine's.
    foreign: Option<String>,
    known: FxHashMap<Recorded, Verdict>,
}

/// An attribute of the kernel under `/proc/sys/kernel`.
fn of_kernel(name: &str) -> Option<String> {
    Root::system().attribute(format!("proc/sys/kernel/{name}"))
}

impl Identities {
    /// Prepares verdicts for a recording.
    pub(super) fn of(about: &About) -> Self {
        let recorded = about.identities.iter();
        let is_this_host = about.host.is_some() && about.host == of_kernel("hostname");
        let is_own_release = about.release.is_some() && about.release == of_kernel("osrelease");
        Self {
            recorded: recorded
                .map(|it| (it.path.as_bytes().to_vec(), it.build_id.clone()))
                .collect(),
            is_this_host,
            is_own_kernel: is_this_host && is_own_release,
            foreign: about.architecture.clone().filter(|it| it != ARCH),
            known: FxHashMap::default(),
        }
    }

    /// True if the recorded vdso is that of this machine.
    pub(super) const fn is_own_kernel(&self) -> bool {
        self.is_own_kernel
    }

    /// Compares the file at a path with the build-id or the inode number of its recorded mapping.
    pub(super) fn verdict(
        &mut self,
        path: &[u8],
        build_id: Option<&str>,
        inode: Option<u64>,
    ) -> Verdict {
        let build_id = build_id
            .map(str::to_owned)
            .or_else(|| self.recorded.get(path).cloned());
        let key = (path.to_vec(), build_id, inode);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let verdict = self.compare(path, key.1.as_deref(), inode);
        self.known.insert(key, verdict.clone());
        verdict
    }

    fn compare(&self, path: &[u8], build_id: Option<&str>, inode: Option<u64>) -> Verdict {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let Some(found) = fs::metadata(path).ok().filter(fs::Metadata::is_file) else {
            return Verdict::Absent;
        };
        if let Some(recorded) = build_id {
            return match build_id_of(path) {
                Some(own) if own == recorded => Verdict::Same,
                Some(_) => {
                    Verdict::Other("has another build-id here than when it was recorded".to_owned())
                }
                None => Verdict::Other("has no build-id here, and had one".to_owned()),
            };
        }
        if let Some(foreign) = &self.foreign {
            return Verdict::Other(format!(
                "was recorded on {foreign}, and nothing says that the file here is the same"
            ));
        }
        match inode {
            Some(inode) if self.is_this_host && found.ino() != inode => {
                Verdict::Other("was replaced since it was recorded".to_owned())
            }
            Some(_) if self.is_this_host => Verdict::Same,
            _ => Verdict::Unproven,
        }
    }
}

/// The build-id of a file in hexadecimal digits.
fn build_id_of(path: &Path) -> Option<String> {
    // Mapped, so that only a few pages of a large file are read.
    let file = fs::File::open(path).ok()?;
    let bytes = membound_launch::map_open_file(&file).ok()?;
    match Image::build_id(&bytes) {
        Ok(Some(Identity::BuildId(id))) => {
            Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        Ok(_) => None,
        // A file of another architecture cannot be parsed as an image, but its symbols can be read.
        Err(_) => {
            let symbols = Symbols::of_bytes(&bytes[..], &path.to_string_lossy()).ok()?;
            symbols.build_id().map(str::to_owned)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(host: &str, architecture: &str) -> About {
        let mut about = About::default();
        about.host = Some(host.to_owned());
        about.architecture = Some(architecture.to_owned());
        about
    }

    #[test]
    fn a_file_is_the_recorded_one_by_build_id_then_by_number() {
        let own = std::env::current_exe().unwrap();
        let path = own.as_os_str().as_bytes();
        let host = of_kernel("hostname").unwrap();
        let inode = fs::metadata(&own).unwrap().ino();
        let mut here = Identities::of(&about(&host, ARCH));
        assert_eq!(here.verdict(path, None, Some(inode)), Verdict::Same);
        assert_eq!(here.verdict(path, None, None), Verdict::Unproven);
        let replaced = here.verdict(path, None, Some(inode + 1));
        assert!(matches!(replaced, Verdict::Other(why) if why.contains("replaced")));
        let other = here.verdict(path, Some("00"), Some(inode));
        assert!(matches!(other, Verdict::Other(why) if why.contains("build-id")));
        if let Some(id) = build_id_of(&own) {
            assert_eq!(here.verdict(path, Some(&id), None), Verdict::Same);
        }
        assert_eq!(here.verdict(b"/no/such/file", None, None), Verdict::Absent);
        let mut elsewhere = Identities::of(&about("elsewhere", "sparc64"));
        let foreign = elsewhere.verdict(path, None, Some(inode));
        assert!(matches!(foreign, Verdict::Other(why) if why.contains("sparc64")));
    }
}
