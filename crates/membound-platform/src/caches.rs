//! The caches as sysfs or CPUID declare them.
//!
//! In a guest the declaration may be the host's, or wrong: measured caches are compared with it,
//! never replaced by it.

use std::collections::HashSet;

use membound_types::{Cache, CacheKind, CpuId};

use crate::{Root, affinity, list};

/// Every cache of every online CPU, innermost first, each instance once.
///
/// Where sysfs declares none, CPUID's list of the calling thread's CPU; empty where CPUID declares
/// none either.
#[must_use]
pub fn read(root: &Root) -> Vec<Cache> {
    let mut caches = Vec::new();
    let mut found = HashSet::new();
    for cpu in affinity::online(root) {
        for cache in of_cpu(root, cpu) {
            if found.insert((cache.level, cache.kind as u8, cache.shared_by.clone())) {
                caches.push(cache);
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    if caches.is_empty() && root.is_system() {
        caches = cpuid();
    }
    caches.sort_by_key(|cache| (cache.level, cache.kind as u8));
    caches
}

/// One cache of each kind, innermost first: of equal instances the first. A hybrid processor has
/// several L1 data caches in this list.
#[must_use]
pub fn kinds(caches: &[Cache]) -> Vec<Cache> {
    let mut kinds: Vec<Cache> = Vec::new();
    for cache in caches {
        let known = kinds.iter().any(|kind| {
            (
                kind.level,
                kind.kind,
                kind.size_bytes,
                kind.line_bytes,
                kind.ways,
            ) == (
                cache.level,
                cache.kind,
                cache.size_bytes,
                cache.line_bytes,
                cache.ways,
            )
        });
        if !known {
            kinds.push(cache.clone());
        }
    }
    kinds
}

/// The caches in front of one CPU as sysfs declares them, innermost first.
#[must_use]
pub fn of_cpu(root: &Root, cpu: CpuId) -> Vec<Cache> {
    let dir = format!("sys/devices/system/cpu/cpu{cpu}/cache");
    let mut caches: Vec<Cache> = root
        .numbered(&dir, "index")
        .into_iter()
        .filter_map(|index| {
            let file = |name: &str| root.attribute(format!("{dir}/index{index}/{name}"));
            let kind = match file("type")?.as_str() {
                "Data" => CacheKind::Data,
                "Instruction" => CacheKind::Instruction,
                "Unified" => CacheKind::Unified,
                _ => return None,
            };
            let positive = |name: &str| file(name)?.parse().ok().filter(|&value: &u32| value > 0);
            Some(Cache {
                level: file("level")?.parse().ok()?,
                kind,
                size_bytes: size(&file("size")?)?,
                line_bytes: positive("coherency_line_size"),
                ways: positive("ways_of_associativity"),
                shared_by: file("shared_cpu_list")
                    .and_then(|text| list::cpus(&text))
                    .unwrap_or_else(|| vec![cpu]),
                source: "sysfs".to_owned(),
            })
        })
        .collect();
    caches.sort_by_key(|cache| (cache.level, cache.kind as u8));
    caches
}

/// Parses `32K`, `1024K`, `32M`, or bytes. Some guests declare a size of 0, which counts as none.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits
        .parse::<u64>()
        .ok()?
        .checked_mul(unit)
        .filter(|&bytes| bytes > 0)
}

/// Leaf 4 (Intel) or 0x8000_001D (AMD). CPUID gives only the number of CPUs that share a cache, so
/// the list of sharers is empty unless that number is one.
#[cfg(target_arch = "x86_64")]
fn cpuid() -> Vec<Cache> {
    use raw_cpuid::{CacheType, CpuId as Cpuid};

    let Some(parameters) = Cpuid::new().get_cache_parameters() else {
        return Vec::new();
    };
    parameters
        .filter_map(|cache| {
            let kind = match cache.cache_type() {
                CacheType::Data => CacheKind::Data,
                CacheType::Instruction => CacheKind::Instruction,
                CacheType::Unified => CacheKind::Unified,
                _ => return None,
            };
            let line = cache.coherency_line_size() as u64;
            let size_bytes = line
                * cache.associativity() as u64
                * cache.physical_line_partitions() as u64
                * cache.sets() as u64;
            let alone = cache.max_cores_for_cache() == 1;
            Some(Cache {
                level: u32::from(cache.level()),
                kind,
                size_bytes,
                line_bytes: u32::try_from(line).ok(),
                ways: u32::try_from(cache.associativity()).ok(),
                shared_by: if alone {
                    vec![affinity::current_cpu()]
                } else {
                    Vec::new()
                },
                source: "cpuid".to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn with_cache(tree: Tree, cpu: u32, index: u32, facts: [&str; 6]) -> Tree {
        let dir = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        let names = [
            "level",
            "type",
            "size",
            "coherency_line_size",
            "ways_of_associativity",
            "shared_cpu_list",
        ];
        names.iter().zip(facts).fold(tree, |tree, (name, fact)| {
            tree.file(&format!("{dir}/{name}"), format!("{fact}\n"))
        })
    }

    fn two_cores() -> Tree {
        let mut tree = Tree::new().file("sys/devices/system/cpu/online", "0-1\n");
        for cpu in 0..2 {
            let own = cpu.to_string();
            tree = with_cache(tree, cpu, 0, ["1", "Data", "48K", "64", "12", &own]);
            tree = with_cache(tree, cpu, 1, ["1", "Instruction", "32K", "64", "8", &own]);
            tree = with_cache(tree, cpu, 2, ["2", "Unified", "1024K", "64", "16", &own]);
            tree = with_cache(tree, cpu, 3, ["3", "Unified", "32M", "64", "0", "0-1"]);
        }
        tree
    }

    #[test]
    fn every_instance_is_listed_once() {
        let caches = read(&two_cores().root());
        assert_eq!(caches.len(), 7);
        assert_eq!(caches[0].size_bytes, 48 << 10);
        let last = caches.last().unwrap();
        assert_eq!(
            (last.level, last.size_bytes, last.ways),
            (3, 32 << 20, None)
        );
        assert_eq!(last.shared_by, [CpuId(0), CpuId(1)]);
        assert_eq!(last.source, "sysfs");
    }

    #[test]
    fn equal_instances_are_one_kind() {
        let kinds = kinds(&read(&two_cores().root()));
        let levels: Vec<_> = kinds
            .iter()
            .map(|cache| (cache.level, cache.kind))
            .collect();
        assert_eq!(
            levels,
            [
                (1, CacheKind::Data),
                (1, CacheKind::Instruction),
                (2, CacheKind::Unified),
                (3, CacheKind::Unified)
            ]
        );
    }

    #[test]
    fn a_cache_of_no_size_is_not_declared() {
        let tree = with_cache(Tree::new(), 0, 0, ["1", "Data", "0K", "64", "8", "0"]);
        assert!(of_cpu(&tree.root(), CpuId(0)).is_empty());
        assert_eq!(size("4M"), Some(4 << 20));
        assert_eq!(size("K"), None);
        assert_eq!(size(""), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn cpuid_and_sysfs_agree_here() {
        let from_sysfs = of_cpu(&Root::system(), affinity::current_cpu());
        let from_cpuid = cpuid();
        if from_sysfs.is_empty() || from_cpuid.is_empty() {
            eprintln!("skipped: this machine declares no caches");
            return;
        }
        for cache in from_cpuid.iter().filter(|cache| cache.level <= 2) {
            assert!(
                from_sysfs
                    .iter()
                    .any(|other| (other.level, other.kind, other.size_bytes)
                        == (cache.level, cache.kind, cache.size_bytes)),
                "{cache:?} is not in {from_sysfs:?}"
            );
        }
    }
}
