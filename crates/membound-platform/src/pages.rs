//! Page sizes, transparent huge pages, the hugetlb pools, and the pages behind a buffer.

mod backing;
mod scan;

use membound_types::{NodeId, Outcome, ThpState};

pub use backing::{Backing, backing};

use crate::Root;

const THP: &str = "sys/kernel/mm/transparent_hugepage";

/// Bytes in a base page.
#[must_use]
pub fn base_page_bytes() -> usize {
    rustix::param::page_size()
}

/// The kernel's settings for transparent huge pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Thp {
    /// Which mappings get huge pages, or why there are none.
    pub enabled: Outcome<ThpState>,
    /// What the kernel does in a page fault to find a huge page: `always`, `defer`,
    /// `defer+madvise`, `madvise`, `never`.
    pub defrag: Option<String>,
    /// The setting of `enabled` for shared memory and tmpfs.
    pub shmem: Option<String>,
    /// Bytes in a transparent huge page.
    pub huge_bytes: Option<u64>,
    /// The kernel thread that replaces base pages by huge pages in the background.
    pub khugepaged: Khugepaged,
    /// Sizes in KiB between a base and a huge page that the kernel is set to use (mTHP).
    pub medium_kib: Vec<u64>,
}

/// Settings and counters of khugepaged; a field is `None` where sysfs does not give it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Khugepaged {
    /// Whether it may wait for a huge page.
    pub defrag: Option<bool>,
    /// Pages that it scans each time.
    pub pages_to_scan: Option<u64>,
    /// Milliseconds that it sleeps between scans.
    pub scan_sleep_ms: Option<u64>,
    /// Huge pages that it has made since the machine was started.
    pub collapsed: Option<u64>,
}

impl Thp {
    /// Reads the settings from sysfs.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let enabled = match root.attribute(format!("{THP}/enabled")) {
            None => Outcome::missing_with(
                "the kernel has no transparent huge pages",
                "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
            ),
            Some(text) => match chosen(&text).map(|state| state.parse()) {
                Some(Ok(state)) => Outcome::Known(state),
                _ => Outcome::missing(format!(
                    "{} holds `{text}`, which names no known state",
                    root.path(format!("{THP}/enabled")).display()
                )),
            },
        };
        let daemon = |name: &str| root.number::<u64>(format!("{THP}/khugepaged/{name}"));
        let selected = |name: &str| {
            root.attribute(format!("{THP}/{name}"))
                .and_then(|text| chosen(&text))
        };
        Self {
            enabled,
            defrag: selected("defrag"),
            shmem: selected("shmem_enabled"),
            huge_bytes: root.number(format!("{THP}/hpage_pmd_size")),
            khugepaged: Khugepaged {
                defrag: daemon("defrag").map(|value| value != 0),
                pages_to_scan: daemon("pages_to_scan"),
                scan_sleep_ms: daemon("scan_sleep_millisecs"),
                collapsed: daemon("pages_collapsed"),
            },
            medium_kib: medium(root),
        }
    }
}

/// Sizes in KiB below the huge page whose own setting is not `never`; `inherit` means the
/// general setting.
fn medium(root: &Root) -> Vec<u64> {
    let huge_kib = root
        .number::<u64>(format!("{THP}/hpage_pmd_size"))
        .map_or(u64::MAX, |bytes| bytes / 1024);
    let general = root
        .attribute(format!("{THP}/enabled"))
        .and_then(|text| chosen(&text));
    let mut sizes: Vec<u64> = root
        .names(THP)
        .iter()
        .filter_map(|name| {
            let kib = kib_in(name)?;
            let state = chosen(&root.attribute(format!("{THP}/{name}/enabled"))?)?;
            let state = match state.as_str() {
                "inherit" => general.as_deref().unwrap_or("never"),
                own => own,
            };
            (kib < huge_kib && state != "never").then_some(kib)
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

/// Page size in KiB from the name of its directory: `hugepages-2048kB`.
fn kib_in(name: &str) -> Option<u64> {
    let number = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    number.parse().ok()
}

/// The word in brackets: `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<String> {
    let from = text.find('[')? + 1;
    let to = from + text[from..].find(']')?;
    Some(text[from..to].to_owned())
}

/// One pool of pages that only hugetlb mappings use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePool {
    /// Bytes in a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that are free, including reserved ones.
    pub free: u64,
    /// Free pages that are reserved for a mapping.
    pub reserved: u64,
    /// Free pages by node, where sysfs gives them.
    pub per_node: Vec<(NodeId, u64)>,
}

impl HugePool {
    /// All pools, smallest page first, also the empty ones.
    #[must_use]
    pub fn read(root: &Root) -> Vec<Self> {
        const POOLS: &str = "sys/kernel/mm/hugepages";
        let nodes = root.numbered("sys/devices/system/node", "node");
        let mut pools: Vec<Self> = root
            .names(POOLS)
            .iter()
            .filter_map(|name| {
                let kib = kib_in(name)?;
                let count = |file: &str| root.number(format!("{POOLS}/{name}/{file}")).unwrap_or(0);
                let per_node = nodes
                    .iter()
                    .filter_map(|&node| {
                        let free = root.number(format!(
                            "sys/devices/system/node/node{node}/hugepages/{name}/free_hugepages"
                        ))?;
                        Some((NodeId(node), free))
                    })
                    .collect();
                Some(Self {
                    page_bytes: kib.checked_mul(1024)?,
                    total: count("nr_hugepages"),
                    free: count("free_hugepages"),
                    reserved: count("resv_hugepages"),
                    per_node,
                })
            })
            .collect();
        pools.sort_by_key(|pool| pool.page_bytes);
        pools
    }

    /// Number of pages that a new mapping can have.
    #[must_use]
    pub fn usable(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn reads_the_settings() {
        let tree = Tree::new()
            .file(&format!("{THP}/enabled"), "always [madvise] never\n")
            .file(
                &format!("{THP}/defrag"),
                "always defer defer+madvise [madvise] never\n",
            )
            .file(&format!("{THP}/hpage_pmd_size"), "2097152\n")
            .file(&format!("{THP}/khugepaged/defrag"), "1\n")
            .file(&format!("{THP}/khugepaged/pages_to_scan"), "4096\n")
            .file(
                &format!("{THP}/hugepages-64kB/enabled"),
                "always [inherit] madvise never\n",
            )
            .file(
                &format!("{THP}/hugepages-128kB/enabled"),
                "always inherit madvise [never]\n",
            )
            .file(
                &format!("{THP}/hugepages-2048kB/enabled"),
                "always [inherit] madvise never\n",
            );
        let thp = Thp::read(&tree.root());
        assert_eq!(thp.enabled, Outcome::Known(ThpState::Madvise));
        assert_eq!(thp.defrag.as_deref(), Some("madvise"));
        assert_eq!(thp.shmem, None);
        assert_eq!(thp.huge_bytes, Some(2 << 20));
        assert_eq!(thp.khugepaged.defrag, Some(true));
        assert_eq!(thp.khugepaged.pages_to_scan, Some(4096));
        assert_eq!(thp.medium_kib, [64]);
    }

    #[test]
    fn absence_and_nonsense_have_reasons() {
        let absent = Thp::read(&Tree::new().root());
        assert!(absent.enabled.why_missing().unwrap().remedy.is_some());
        let odd = Thp::read(
            &Tree::new()
                .file(&format!("{THP}/enabled"), "[sometimes]\n")
                .root(),
        );
        assert!(
            odd.enabled
                .why_missing()
                .unwrap()
                .reason
                .contains("[sometimes]")
        );
    }

    #[test]
    fn reads_pools_smallest_first() {
        let pool =
            |kib: u32, file: &str| format!("sys/kernel/mm/hugepages/hugepages-{kib}kB/{file}");
        let tree = Tree::new()
            .file(&pool(1_048_576, "nr_hugepages"), "0\n")
            .file(&pool(1_048_576, "free_hugepages"), "0\n")
            .file(&pool(2048, "nr_hugepages"), "128\n")
            .file(&pool(2048, "free_hugepages"), "100\n")
            .file(&pool(2048, "resv_hugepages"), "30\n")
            .file(
                "sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages",
                "60\n",
            );
        let pools = HugePool::read(&tree.root());
        assert_eq!(pools.len(), 2);
        assert_eq!(pools[0].page_bytes, 2 << 20);
        assert_eq!(
            (pools[0].total, pools[0].free, pools[0].usable()),
            (128, 100, 70)
        );
        assert_eq!(pools[0].per_node, [(NodeId(1), 60)]);
        assert_eq!(pools[1].total, 0);
    }
}
