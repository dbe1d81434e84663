//! Which pages the kernel has actually put behind a buffer.

use super::scan;
use crate::{Error, Root};

/// Memory behind a range, by the size of its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Bytes in base pages.
    pub base_bytes: u64,
    /// Bytes in transparent huge pages or pages of a hugetlb pool.
    pub huge_bytes: u64,
    /// The page size that the kernel keeps the mapping in: the base page, or the page of
    /// the hugetlb pool. The smallest, where the range covers several mappings.
    pub kernel_page_bytes: u64,
}

impl Backing {
    /// Share of the resident memory that lies in huge pages, 0 to 1; 0 where nothing is resident.
    #[must_use]
    pub fn huge_share(&self) -> f64 {
        let resident = self.base_bytes + self.huge_bytes;
        if resident == 0 {
            return 0.0;
        }
        self.huge_bytes as f64 / resident as f64
    }
}

/// The memory behind `len` bytes at `start`, according to `/proc/self/smaps`.
///
/// smaps counts by mapping. Where one reaches beyond the range (the kernel merges equal
/// neighbours), `PAGEMAP_SCAN` counts the pages of the range itself. Kernels before 6.7 have no
/// such call: there, at most the part inside is counted, huge pages first, so that a neighbour's
/// pages may be counted for the range's.
///
/// # Errors
/// [`Error::Read`] where procfs is closed, [`Error::NotMapped`] where nothing is mapped.
pub fn backing(start: *const u8, len: usize) -> Result<Backing, Error> {
    let smaps = Root::system().read("proc/self/smaps")?;
    let from = start as usize;
    let to = from.saturating_add(len);
    let sum = summed(&smaps, from as u64, to as u64).ok_or(Error::NotMapped {
        start: from,
        end: to,
    })?;
    let mut backing = sum.backing;
    if !sum.exact
        && let Some(pages) = scan::pages(from as u64, to as u64)
    {
        backing.base_bytes = pages.base_bytes;
        backing.huge_bytes = pages.huge_bytes;
    }
    Ok(backing)
}

/// The counts of smaps for a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    backing: Backing,
    /// Whether no mapping reaches beyond the range.
    exact: bool,
}

/// One mapping of smaps.
#[derive(Default)]
struct Mapping {
    inside: u64,
    whole: bool,
    resident: u64,
    anon_huge: u64,
    shared_huge: u64,
    hugetlb: u64,
    page: u64,
}

impl Mapping {
    fn add_to(&self, sum: &mut Sum) {
        sum.exact &= self.whole;
        let sum = &mut sum.backing;
        let huge = (self.anon_huge + self.shared_huge + self.hugetlb).min(self.inside);
        // `Rss` includes transparent huge pages and excludes hugetlb pages.
        let base = self
            .resident
            .saturating_sub(self.anon_huge + self.shared_huge)
            .min(self.inside - huge);
        sum.huge_bytes += huge;
        sum.base_bytes += base;
        sum.kernel_page_bytes = match sum.kernel_page_bytes {
            0 => self.page,
            page => page.min(self.page),
        };
    }
}

/// Sums up the mappings that the range touches; `None` where there is none.
fn summed(smaps: &str, from: u64, to: u64) -> Option<Sum> {
    let mut sum = None;
    let mut current: Option<Mapping> = None;
    let mut close = |mapping: Option<Mapping>| {
        if let Some(mapping) = mapping {
            mapping.add_to(sum.get_or_insert(Sum {
                exact: true,
                ..Sum::default()
            }));
        }
    };
    for line in smaps.lines() {
        if let Some((first, last)) = header(line) {
            close(current.take());
            let inside = last.min(to).saturating_sub(first.max(from));
            current = (inside > 0).then(|| Mapping {
                inside,
                whole: inside == last - first,
                ..Mapping::default()
            });
        } else if let Some(mapping) = &mut current
            && let Some((name, bytes)) = field(line)
        {
            match name {
                "Rss" => mapping.resident = bytes,
                "AnonHugePages" => mapping.anon_huge = bytes,
                "ShmemPmdMapped" | "FilePmdMapped" => mapping.shared_huge += bytes,
                "Private_Hugetlb" | "Shared_Hugetlb" => mapping.hugetlb += bytes,
                "KernelPageSize" => mapping.page = bytes,
                _ => {}
            }
        }
    }
    close(current);
    sum
}

/// The addresses of a line that begins a mapping.
fn header(line: &str) -> Option<(u64, u64)> {
    let (range, _) = line.split_once(' ')?;
    let (first, last) = range.split_once('-')?;
    Some((
        u64::from_str_radix(first, 16).ok()?,
        u64::from_str_radix(last, 16).ok()?,
    ))
}

/// A line `Name:   N kB`.
fn field(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    let kib: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((name, kib.checked_mul(1024)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                3072 kB
AnonHugePages:      2048 kB
Private_Hugetlb:       0 kB
VmFlags: rd wr mr mw me ac hg
7f0000400000-7f0000800000 rw-p 00000000 00:0f 1234 /anon_hugepage (deleted)
Size:               4096 kB
KernelPageSize:     2048 kB
MMUPageSize:        2048 kB
Rss:                   0 kB
AnonHugePages:         0 kB
Private_Hugetlb:    4096 kB
VmFlags: rd wr mr mw me de ht
";

    #[test]
    fn transparent_and_pool_pages_are_counted() {
        let thp = summed(SMAPS, 0x7f00_0000_0000, 0x7f00_0040_0000).unwrap();
        assert!(thp.exact);
        let thp = thp.backing;
        assert_eq!(
            thp,
            Backing {
                base_bytes: 1 << 20,
                huge_bytes: 2 << 20,
                kernel_page_bytes: 4096
            }
        );
        assert!((thp.huge_share() - 2.0 / 3.0).abs() < 1e-12);
        let pool = summed(SMAPS, 0x7f00_0040_0000, 0x7f00_0080_0000).unwrap();
        let pool = pool.backing;
        assert_eq!(pool.huge_bytes, 4 << 20);
        assert_eq!(pool.base_bytes, 0);
        assert_eq!(pool.kernel_page_bytes, 2 << 20);
    }

    #[test]
    fn a_range_over_two_mappings_is_summed_and_clipped() {
        let both = summed(SMAPS, 0x7f00_0000_0000, 0x7f00_0060_0000).unwrap();
        assert!(!both.exact);
        let both = both.backing;
        assert_eq!(both.huge_bytes, (2 << 20) + (2 << 20));
        assert_eq!(both.base_bytes, 1 << 20);
        assert_eq!(both.kernel_page_bytes, 4096);
    }

    #[test]
    fn nothing_mapped_is_no_backing() {
        assert_eq!(summed(SMAPS, 0x1000, 0x2000), None);
        assert!(matches!(
            backing(std::ptr::without_provenance(8), 8),
            Err(Error::NotMapped { .. })
        ));
    }

    #[test]
    fn a_touched_buffer_of_this_process_is_resident() {
        let buffer = vec![1u8; 1 << 20];
        let behind = backing(buffer.as_ptr(), buffer.len()).unwrap();
        assert!(
            behind.base_bytes + behind.huge_bytes >= 1 << 19,
            "{behind:?}"
        );
        assert_eq!(
            behind.kernel_page_bytes,
            crate::pages::base_page_bytes() as u64
        );
    }
}
