//! Groups document 002's windows into series, and converts times to rates of sign changes.

use membound_types::{CpuId, NodePolicy, PageKind, Window, WindowKernel, WindowPoint};

/// Bytes of a double; the kernels change the sign of doubles.
const DOUBLE_BYTES: f64 = 8.0;
/// Areas of different windows whose ratio is below this count as one area, rounded down to whole windows:
/// measured areas are half an octave apart.
const SAME_AREA: f64 = 1.15;

/// Sign changes of doubles, in 10⁶ per second.
pub(crate) fn mflops(point: &WindowPoint) -> f64 {
    point.window_bytes as f64 / DOUBLE_BYTES / point.seconds_per_window / 1e6
}

/// Conditions that identify a series.
type Key = (WindowKernel, PageKind, NodePolicy, CpuId, Option<CpuId>);

/// Windows of all sizes under the same conditions.
#[derive(Clone, Debug)]
pub(crate) struct Series<'a> {
    key: Key,
    pub(crate) points: Vec<&'a WindowPoint>,
}

/// Windows of all sizes over one area.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) area_bytes: u64,
    pub(crate) points: Vec<&'a WindowPoint>,
}

/// All series, by kernel and then in the order of measurement.
pub(crate) fn series(window: &Window) -> Vec<Series<'_>> {
    let mut all: Vec<Series<'_>> = Vec::new();
    for point in &window.points {
        let key = (
            point.kernel,
            point.page,
            point.node,
            point.cpu,
            point.init_cpu,
        );
        match all.iter_mut().find(|series| series.key == key) {
            Some(series) => series.points.push(point),
            None => all.push(Series {
                key,
                points: vec![point],
            }),
        }
    }
    let rank = |series: &Series<'_>| WindowKernel::ALL.iter().position(|it| *it == series.key.0);
    all.sort_by_key(rank);
    all
}

impl<'a> Series<'a> {
    pub(crate) const fn kernel(&self) -> WindowKernel {
        self.key.0
    }

    /// True if `other` was measured under the same conditions, regardless of the kernel.
    pub(crate) fn is_plain(&self, other: &Self) -> bool {
        let conditions = |key: Key| (key.1, key.2, key.3, key.4);
        conditions(self.key) == conditions(other.key)
    }

    /// The kernel, and the conditions that differ between series.
    pub(crate) fn title(&self, all: &[Self]) -> String {
        let (kernel, page, node, cpu, init_cpu) = self.key;
        let mut words = vec![kernel.to_string()];
        if all.iter().any(|it| it.key.1 != page) {
            words.push(format!("{page} pages"));
        }
        if all.iter().any(|it| it.key.2 != node) {
            words.push(format!("node {node}"));
        }
        if all.iter().any(|it| it.key.3 != cpu) {
            words.push(format!("CPU {cpu}"));
        }
        match init_cpu {
            Some(cpu) => words.push(format!("initialised by CPU {cpu}")),
            None if all.iter().any(|it| it.key.4.is_some()) => {
                words.push("initialised by the same CPU".to_owned());
            }
            None => {}
        }
        words.join(", ")
    }

    /// Points by area, smallest first. Areas are whole numbers of windows, so areas of different windows
    /// differ by less than one window; such points share a row, which has each window once.
    pub(crate) fn by_area(&self) -> Vec<Row<'a>> {
        let mut points = self.points.clone();
        points.sort_by_key(|point| (point.area_bytes, point.window_bytes));
        let mut rows: Vec<Row<'a>> = Vec::new();
        // Of repeated windows in the same area, the first counts.
        points.dedup_by_key(|point| (point.area_bytes, point.window_bytes));
        for point in points {
            let near = rows.last_mut().filter(|row| {
                let first = row.points[0].area_bytes as f64;
                let is_new = |it: &&WindowPoint| it.window_bytes != point.window_bytes;
                let has_area = row.area_bytes == point.area_bytes;
                let same = has_area || point.area_bytes as f64 <= SAME_AREA * first;
                same && row.points.iter().all(is_new)
            });
            match near {
                Some(row) => {
                    row.area_bytes = point.area_bytes;
                    row.points.push(point);
                }
                None => rows.push(Row {
                    area_bytes: point.area_bytes,
                    points: vec![point],
                }),
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use membound_types::Samples;

    use super::*;

    fn point(window_bytes: u64, area_bytes: u64) -> WindowPoint {
        WindowPoint {
            window_bytes,
            area_bytes,
            seconds_per_window: 1e-6,
            seconds_low: 9e-7,
            seconds_high: 1.1e-6,
            kernel: WindowKernel::Scalar,
            page: PageKind::Thp,
            node: NodePolicy::LOCAL,
            cpu: CpuId(0),
            init_cpu: None,
            batches: Samples::default(),
        }
    }

    #[test]
    fn the_papers_areas_have_one_row_each_whatever_the_window() {
        let mut points = Vec::new();
        for i in 4..40 {
            let area = (4096.0 * 2_f64.powf(f64::from(i) / 2.0) + 1.5) as u64;
            points.extend([1024, 2048, 4096].map(|window| point(window, area - area % window)));
        }
        // A repeated measurement is shown once.
        points.push(points[7].clone());
        let window = Window {
            points,
            ..Window::default()
        };
        let series = series(&window);
        assert_eq!(series.len(), 1);
        let rows = series[0].by_area();
        assert_eq!(rows.len(), 36);
        assert!(rows.iter().all(|row| row.points.len() == 3), "{rows:?}");
        assert!(
            rows.windows(2)
                .all(|two| two[0].area_bytes < two[1].area_bytes)
        );
    }

    #[test]
    fn given_areas_are_kept_apart_and_conditions_are_series() {
        let mut other = point(1024, 16 << 10);
        other.page = PageKind::Base;
        let window = Window {
            points: vec![point(1024, 16 << 10), point(1024, 17 << 10), other],
            ..Window::default()
        };
        let series = series(&window);
        assert_eq!(series.len(), 2);
        assert_eq!(series[0].by_area().len(), 2);
        assert_eq!(series[0].title(&series), "scalar, thp pages");
        assert!(!series[1].is_plain(&series[0]));
    }

    #[test]
    fn a_window_has_a_sign_change_for_every_double() {
        // 128 doubles per microsecond.
        assert!((mflops(&point(1024, 1 << 20)) - 128.0).abs() < 1e-9);
    }
}
