//! The page tables of a range through `PAGEMAP_SCAN` (Linux 6.7, no privilege needed).

use std::fs::File;
use std::os::fd::AsRawFd;

/// Memory of a range by the size of its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) base_bytes: u64,
    pub(super) huge_bytes: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)` where the direction takes the two highest bits. POWER
/// orders them otherwise; its callers use the older method.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | 0x66 << 8 | 16;

const IS_PRESENT: u64 = 1 << 3;
const IS_HUGE: u64 = 1 << 6;

/// Present memory from `from` to `to`; `None` where the kernel has no such call.
pub(super) fn pages(from: u64, to: u64) -> Option<Pages> {
    if cfg!(target_arch = "powerpc64") {
        return None;
    }
    let page = super::base_page_bytes() as u64;
    let (mut at, to) = (from / page * page, to.next_multiple_of(page));
    let pagemap = File::open("/proc/self/pagemap").ok()?;
    let mut regions = [Region::default(); 512];
    let mut found = Pages::default();
    while at < to {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end: to,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            category_mask: IS_PRESENT,
            return_mask: IS_PRESENT | IS_HUGE,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes the argument, whose length is in it, and
        // writes at most `vec_len` entries of `regions`, which outlives the call.
        let count = unsafe {
            libc::ioctl(
                pagemap.as_raw_fd(),
                PAGEMAP_SCAN as _,
                std::ptr::from_mut(&mut scan),
            )
        };
        let count = usize::try_from(count).ok()?;
        for region in regions.iter().take(count) {
            let bytes = region.end.min(to).saturating_sub(region.start.max(at));
            if region.categories & IS_HUGE == 0 {
                found.base_bytes += bytes;
            } else {
                found.huge_bytes += bytes;
            }
        }
        if scan.walk_end <= at {
            // No progress would be a kernel's error; the caller has another method.
            return None;
        }
        at = scan.walk_end;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    #[test]
    fn touched_pages_of_a_part_of_a_mapping_are_counted() {
        let page = crate::pages::base_page_bytes();
        let len = 64 * page;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so that nothing else is replaced.
        let place = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }
            .unwrap();
        // SAFETY: the range is the mapping made above. A kernel without huge pages refuses
        // the advice, and then there are none anyway.
        let _ = unsafe { madvise(place, len, Advice::LinuxNoHugepage) };
        // Every second page of the first half.
        for index in (0..32).step_by(2) {
            let byte = place.cast::<u8>().wrapping_add(index * page);
            // SAFETY: the byte lies inside the mapping made above.
            unsafe { byte.write_volatile(1) };
        }
        let start = place.addr() as u64;
        let half = pages(start, start + (len / 2) as u64);
        let rest = pages(start + (len / 2) as u64, start + len as u64);
        let behind = crate::pages::backing(place.cast(), len / 2).unwrap();
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(place, len) }.unwrap();
        let (Some(half), Some(rest)) = (half, rest) else {
            eprintln!("skipped: the kernel has no PAGEMAP_SCAN");
            return;
        };
        assert_eq!((half.base_bytes, half.huge_bytes), (16 * page as u64, 0));
        assert_eq!(rest, Pages::default());
        assert_eq!(behind.base_bytes, 16 * page as u64);
    }

    #[test]
    fn huge_pages_are_distinguished_from_base_pages() {
        const HUGE: usize = 2 << 20;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let len = 4 * HUGE;
        // SAFETY: the kernel chooses the address, so that nothing else is replaced.
        let place = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }
            .unwrap();
        // SAFETY: the range is the mapping made above.
        let advised = unsafe { madvise(place, len, Advice::LinuxHugepage) };
        let aligned = place
            .cast::<u8>()
            .wrapping_add(place.cast::<u8>().align_offset(HUGE));
        // SAFETY: two huge pages from the first boundary on lie inside four of them.
        unsafe { aligned.write_bytes(1, 2 * HUGE) };
        let start = aligned.addr() as u64;
        let found = pages(start, start + HUGE as u64);
        let behind = crate::pages::backing(aligned, HUGE).unwrap();
        // SAFETY: nothing refers to the mapping any more.
        unsafe { munmap(place, len) }.unwrap();
        match found {
            Some(found) if advised.is_ok() && found.huge_bytes > 0 => {
                assert_eq!((found.base_bytes, found.huge_bytes), (0, HUGE as u64));
                assert_eq!(behind.huge_bytes, HUGE as u64);
            }
            _ => eprintln!("skipped: no huge page or no PAGEMAP_SCAN to be had"),
        }
    }
}
