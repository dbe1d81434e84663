//! Checks once, before anything is measured, whether the requested pools of huge pages have pages. Otherwise
//! each part would find an empty pool for itself.

use membound_measure::remedy_of;
use membound_platform::Root;
use membound_platform::pages::HugePool;
use membound_types::{MachineProfile, Outcome, PageKind};

use crate::args::MeasureArgs;

/// Removes page kinds with an empty pool from `args`; returns the rest and one reason for each removed kind.
///
/// # Errors
/// The reasons, if page kinds were requested and all are removed.
pub(super) fn check(root: &Root, args: &MeasureArgs) -> anyhow::Result<(MeasureArgs, Vec<String>)> {
    let (pages, left_out) = usable(root, &args.page);
    anyhow::ensure!(
        args.page.is_empty() || !pages.is_empty(),
        "{}",
        left_out.join("; ")
    );
    let mut args = args.clone();
    args.page = pages;
    Ok((args, left_out))
}

/// Writes the reasons into the first measured part that records what was skipped.
pub(super) fn note(left_out: &[String], profile: &mut MachineProfile) {
    let skipped = [
        list(&mut profile.latency, |part| &mut part.skipped),
        list(&mut profile.mlp, |part| &mut part.skipped),
        list(&mut profile.window, |part| &mut part.skipped),
        list(&mut profile.bandwidth, |part| &mut part.skipped),
        list(&mut profile.loaded, |part| &mut part.skipped),
        list(&mut profile.tlb, |part| &mut part.skipped),
    ];
    if let Some(skipped) = skipped.into_iter().flatten().next() {
        skipped.extend_from_slice(left_out);
    }
}

fn list<T>(
    part: &mut Outcome<T>,
    of: impl Fn(&mut T) -> &mut Vec<String>,
) -> Option<&mut Vec<String>> {
    match part {
        Outcome::Known(part) => Some(of(part)),
        Outcome::Missing { .. } => None,
    }
}

fn usable(root: &Root, asked: &[PageKind]) -> (Vec<PageKind>, Vec<String>) {
    let pools = HugePool::read(root);
    let (mut pages, mut left_out) = (Vec::new(), Vec::new());
    for &page in asked {
        match why_empty(&pools, page) {
            None => pages.push(page),
            Some(why) if !left_out.contains(&why) => left_out.push(why),
            Some(_) => {}
        }
    }
    (pages, left_out)
}

/// Why no page of kind `page` is available; `None` where the kernel may provide some.
fn why_empty(pools: &[HugePool], page: PageKind) -> Option<String> {
    let bytes = match page {
        PageKind::Base | PageKind::Thp => return None,
        PageKind::Huge2M => 2 << 20,
        PageKind::Huge1G => 1 << 30,
    };
    let remedy = remedy_of(page);
    let Some(pool) = pools.iter().find(|pool| pool.page_bytes == bytes) else {
        return Some(format!("{page} pages: this machine has no pool of them"));
    };
    match (pool.total, pool.usable()) {
        (0, _) => Some(format!("{page} pages: the pool is empty{remedy}")),
        (total, 0) => Some(format!(
            "{page} pages: all {total} pages of the pool are in use{remedy}"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(dir: &tempfile::TempDir, (total, free): (u64, u64)) -> Root {
        let pool = dir.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
        std::fs::create_dir_all(&pool).unwrap();
        for (file, count) in [
            ("nr_hugepages", total),
            ("free_hugepages", free),
            ("resv_hugepages", 0),
        ] {
            std::fs::write(pool.join(file), format!("{count}\n")).unwrap();
        }
        Root::at(dir.path())
    }

    #[test]
    fn an_empty_pool_is_reported_once_and_other_pages_stay() {
        let dir = tempfile::tempdir().unwrap();
        let args = MeasureArgs {
            page: vec![PageKind::Thp, PageKind::Huge2M, PageKind::Huge2M],
            ..MeasureArgs::default()
        };
        let (left, left_out) = check(&root(&dir, (0, 0)), &args).unwrap();
        assert_eq!(left.page, [PageKind::Thp]);
        let [why] = left_out.as_slice() else {
            panic!("{left_out:?}")
        };
        assert!(why.starts_with("2m pages: the pool is empty"), "{why}");
        assert!(why.contains("nr_hugepages"), "{why}");

        let (left, left_out) = check(&root(&dir, (8, 8)), &args).unwrap();
        assert_eq!(left.page, args.page);
        assert!(left_out.is_empty(), "{left_out:?}");
    }

    #[test]
    fn pages_of_empty_pools_alone_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let args = MeasureArgs {
            page: vec![PageKind::Huge2M, PageKind::Huge1G],
            ..MeasureArgs::default()
        };
        let error = check(&root(&dir, (4, 0)), &args).unwrap_err().to_string();
        assert!(
            error.contains("all 4 pages of the pool are in use"),
            "{error}"
        );
        assert!(
            error.contains("1g pages: this machine has no pool"),
            "{error}"
        );
        // Without a requested page kind, the parts choose.
        let (_, left_out) = check(&root(&dir, (0, 0)), &MeasureArgs::default()).unwrap();
        assert_eq!(left_out, Vec::<String>::new());
    }
}
