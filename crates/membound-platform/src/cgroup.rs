//! Control groups: this process's group, its ancestors, and the share of a CPU that they leave.

use std::path::PathBuf;

use crate::Root;

/// Version of the hierarchy that a group is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

/// The group of this process, or one of its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) version: Version,
    /// Its directory, relative to the root.
    pub(crate) dir: PathBuf,
}

/// The groups of this process that may limit `controller`, outermost first, as far as they are
/// visible.
pub(crate) fn visible_ancestors(root: &Root, controller: &str) -> Vec<Group> {
    let membership = root.read("proc/self/cgroup").unwrap_or_default();
    let mounts = root.read("proc/self/mountinfo").unwrap_or_default();
    let mut groups = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let version = if controllers.is_empty() {
            Version::Two
        } else if controllers.split(',').any(|name| name == controller) {
            Version::One
        } else {
            continue;
        };
        for mount in Mount::all(&mounts, version, controller) {
            let dirs = mount.visible_ancestors(path);
            groups.extend(dirs.into_iter().map(|dir| Group { version, dir }));
        }
    }
    groups
}

/// CPU time per elapsed time, in CPUs, to which the tightest group limits this process; `None`
/// without a limit. A process that exhausts its quota is stopped until the next period.
#[must_use]
pub fn cpu_quota(root: &Root) -> Option<f64> {
    visible_ancestors(root, "cpu")
        .into_iter()
        .filter_map(|group| {
            let (quota, period): (f64, f64) = match group.version {
                Version::One => (
                    root.number(group.dir.join("cpu.cfs_quota_us"))?,
                    root.number(group.dir.join("cpu.cfs_period_us"))?,
                ),
                Version::Two => {
                    let text = root.attribute(group.dir.join("cpu.max"))?;
                    let (quota, period) = text.split_once(' ')?;
                    (quota.parse().ok()?, period.trim().parse().ok()?)
                }
            };
            (quota > 0.0 && period > 0.0).then(|| quota / period)
        })
        .min_by(f64::total_cmp)
}

/// A mount of a hierarchy, and the group that is visible at the mount point.
struct Mount {
    group: String,
    point: PathBuf,
}

impl Mount {
    fn all(mountinfo: &str, version: Version, controller: &str) -> Vec<Self> {
        mountinfo
            .lines()
            .filter_map(|line| {
                let (before, after) = line.split_once(" - ")?;
                let mut after = after.split(' ');
                let kind = after.next()?;
                let options = after.nth(1).unwrap_or("");
                let fits = match version {
                    Version::One => {
                        kind == "cgroup" && options.split(',').any(|option| option == controller)
                    }
                    Version::Two => kind == "cgroup2",
                };
                let mut before = before.split(' ').skip(3);
                let group = unescape(before.next()?);
                let point = unescape(before.next()?);
                fits.then(|| Self {
                    group,
                    point: PathBuf::from(point.trim_start_matches('/')),
                })
            })
            .collect()
    }

    /// The directories of the group `path` and of all its ancestors that are visible.
    fn visible_ancestors(&self, path: &str) -> Vec<PathBuf> {
        // In a container without a cgroup namespace the path is the host's, while the
        // mount begins with the container's own group.
        let below = match path.strip_prefix(self.group.as_str()) {
            Some(rest) if self.group == "/" || rest.is_empty() || rest.starts_with('/') => rest,
            _ if self.group == "/" => path,
            _ => "",
        };
        let mut dir = self.point.clone();
        let mut directories = vec![dir.clone()];
        for part in below.split('/').filter(|part| !part.is_empty()) {
            if part == ".." {
                // A group outside of this namespace is not visible.
                return vec![self.point.clone()];
            }
            dir.push(part);
            directories.push(dir.clone());
        }
        directories
    }
}

/// Decodes octal escapes: mountinfo writes blanks as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = code {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn unified() -> Tree {
        Tree::new().file("proc/self/cgroup", "0::/a/b\n").file(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
        )
    }

    #[test]
    fn the_tightest_quota_counts() {
        let tree = unified()
            .file("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
            .file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        assert_eq!(cpu_quota(&tree.root()), Some(1.5));
        assert_eq!(cpu_quota(&unified().root()), None);
    }

    #[test]
    fn a_quota_of_the_older_kind() {
        let tree = |quota: &str| {
            Tree::new()
                .file("proc/self/cgroup", "3:cpu,cpuacct:/x\n")
                .file(
                    "proc/self/mountinfo",
                    "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
                )
                .file("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", quota)
                .file("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
        };
        assert_eq!(cpu_quota(&tree("50000\n").root()), Some(0.5));
        assert_eq!(cpu_quota(&tree("-1\n").root()), None);
    }

    #[test]
    fn a_group_outside_of_the_namespace_is_ignored() {
        let mount = Mount {
            group: "/".to_owned(),
            point: PathBuf::from("sys/fs/cgroup"),
        };
        assert_eq!(
            mount.visible_ancestors("/../x"),
            [PathBuf::from("sys/fs/cgroup")]
        );
        assert_eq!(unescape(r"/a\040b\"), r"/a b\");
    }
}
