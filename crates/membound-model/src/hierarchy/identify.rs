//! Finds what data determine: the rank, parameters that cannot be separated, the combinations of
//! them that can be determined, and the covariance of both.
//!
//! A parameter is identifiable if its unit vector is orthogonal to the null space of the
//! weighted design: no change of the others compensates a change of it. The null space
//! comes from singular values of the triangle with columns of unit length, so that units do
//! not matter.

use nalgebra::{DMatrix, DVector};

use super::solve::{lengths, nearest_non_negative, scaled, spectrum};

/// Relative rounding error of a design, a few units in the last place of its entries; singular
/// values below this share of the largest count as zero.
const ROUNDING: f64 = 1e-13;

/// Entries of null vectors up to this are zero, however well separated the spectrum is.
const MIN_LEAK: f64 = 1e-9;

/// Entries of null vectors above this are not zero, however badly separated the spectrum is.
const MAX_LEAK: f64 = 1e-4;

/// Largest denominator of a factor that is rounded to a fraction.
const MAX_PARTS: u32 = 16;

/// Parameters whose changes can compensate each other.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Columns of the parameters, ascending.
    pub(super) members: Vec<usize>,
    /// Determined combinations: factors in the order of `members`, in reduced row echelon form with
    /// the last members as the free ones.
    pub(super) determined: Vec<Vec<f64>>,
    /// Orthonormal directions about which the data say nothing, in the order of `members` and
    /// in the parameters' own units.
    null_directions: DMatrix<f64>,
}

/// What the data determine of the columns of a triangle.
#[derive(Clone, Debug)]
pub(super) struct Identified {
    /// Number of directions that are determined.
    pub(super) rank: usize,
    /// Ratio of the largest to the smallest singular value within the rank; 1 for rank 0.
    pub(super) condition: f64,
    /// True for columns of zeros: no data depend on them.
    pub(super) idle: Vec<bool>,
    /// True for columns that the data determine individually.
    pub(super) identifiable: Vec<bool>,
    /// Groups of the columns that are neither identifiable nor idle.
    pub(super) groups: Vec<Group>,
    /// (XᵀWX)⁺ in the parameters' own units.
    pub(super) covariance: DMatrix<f64>,
}

/// Share of the largest singular value that rounding in a design with `rows` rows can produce.
pub(super) fn rank_tolerance(rows: usize) -> f64 {
    ROUNDING.max(f64::EPSILON * rows as f64)
}

/// Analyses `triangle`, the R of a design with `rows` rows.
pub(super) fn identify(triangle: &DMatrix<f64>, rows: usize) -> Identified {
    let count = triangle.ncols();
    let idle: Vec<bool> = triangle
        .column_iter()
        .map(|column| column.iter().all(|&entry| entry == 0.0))
        .collect();
    let live: Vec<usize> = (0..count).filter(|&column| !idle[column]).collect();
    let mut identified = Identified {
        rank: 0,
        condition: 1.0,
        identifiable: idle.iter().map(|idle| !idle).collect(),
        idle,
        groups: Vec::new(),
        covariance: DMatrix::zeros(count, count),
    };
    if live.is_empty() {
        return identified;
    }
    let matrix = triangle.select_columns(&live);
    let lengths = lengths(&matrix);
    let spectrum = spectrum(&scaled(matrix, &lengths));
    let tolerance = rank_tolerance(rows);
    let rank = spectrum.rank(tolerance);
    let inverse = spectrum.inverse_square(rank);
    for (row, &to) in live.iter().enumerate() {
        for (column, &from) in live.iter().enumerate() {
            identified.covariance[(to, from)] =
                inverse[(row, column)] / (lengths[row] * lengths[column]);
        }
    }
    identified.rank = rank;
    if rank > 0 {
        identified.condition = spectrum.values[0] / spectrum.values[rank - 1];
    }
    if rank == live.len() {
        return identified;
    }
    // The smaller the gap in the spectrum, the less exact are the null vectors.
    let leak = (100.0 * tolerance * identified.condition).clamp(MIN_LEAK, MAX_LEAK);
    let null = spectrum
        .vectors
        .columns(rank, live.len() - rank)
        .into_owned();
    for members in connected(&null, leak) {
        // A single column that is not zero is determined; the null space's leak into it is rounding.
        if members.len() == 1 {
            continue;
        }
        let group = resolve(&null, &lengths, &live, &members, leak);
        for &member in &group.members {
            identified.identifiable[member] = false;
        }
        identified.groups.push(group);
    }
    identified
}

/// Groups of rows that the projection onto the null space connects.
fn connected(null: &DMatrix<f64>, leak: f64) -> Vec<Vec<usize>> {
    let count = null.nrows();
    let projection = null * null.transpose();
    let mut grouped = vec![false; count];
    let mut groups = Vec::new();
    for start in 0..count {
        if grouped[start] {
            continue;
        }
        grouped[start] = true;
        let mut members = vec![start];
        let mut next = 0;
        while next < members.len() {
            let row = members[next];
            next += 1;
            for column in 0..count {
                if !grouped[column] && projection[(row, column)].abs() > leak {
                    grouped[column] = true;
                    members.push(column);
                }
            }
        }
        members.sort_unstable();
        groups.push(members);
    }
    groups
}

/// The determined combinations and the undetermined directions of one group.
fn resolve(
    null: &DMatrix<f64>,
    lengths: &[f64],
    live: &[usize],
    members: &[usize],
    leak: f64,
) -> Group {
    let rows: Vec<DVector<f64>> = members
        .iter()
        .map(|&member| null.row(member).transpose())
        .collect();
    let (free, basis) = last_independent(&rows, leak);
    let pivots: Vec<usize> = (0..members.len())
        .filter(|place| !free.contains(place))
        .collect();
    // Coordinates of the free members in `basis`.
    let square = DMatrix::from_fn(free.len(), free.len(), |row, column| {
        rows[free[row]].dot(&basis[column])
    });
    let inverse = square
        .transpose()
        .lu()
        .try_inverse()
        .unwrap_or_else(|| DMatrix::zeros(free.len(), free.len()));
    let mut determined = Vec::new();
    let mut null_directions = DMatrix::zeros(members.len(), free.len());
    for (place, &member) in free.iter().enumerate() {
        null_directions[(member, place)] = 1.0;
    }
    for &pivot in &pivots {
        let along = DVector::from_fn(free.len(), |row, _| rows[pivot].dot(&basis[row]));
        let shares = &inverse * along;
        let mut factors = vec![0.0; members.len()];
        factors[pivot] = 1.0;
        for (place, &member) in free.iter().enumerate() {
            let share = shares[place];
            if share.abs() <= leak {
                continue;
            }
            let units = lengths[members[member]] / lengths[members[pivot]];
            let factor = fraction(share * units, leak);
            factors[member] = -factor;
            null_directions[(pivot, place)] = factor;
        }
        determined.push(factors);
    }
    Group {
        members: members.iter().map(|&member| live[member]).collect(),
        determined,
        null_directions: null_directions.qr().q(),
    }
}

/// The last independent rows, ascending, and an orthonormal basis of their span.
fn last_independent(rows: &[DVector<f64>], leak: f64) -> (Vec<usize>, Vec<DVector<f64>>) {
    let mut free = Vec::new();
    let mut basis: Vec<DVector<f64>> = Vec::new();
    for place in (0..rows.len()).rev() {
        let mut rest = rows[place].clone();
        // Two passes of Gram-Schmidt suffice (Kahan).
        for _ in 0..2 {
            for direction in &basis {
                let along = rest.dot(direction);
                rest.axpy(-along, direction, 1.0);
            }
        }
        let length = rest.norm();
        if length > leak {
            basis.push(rest / length);
            free.push(place);
        }
    }
    free.reverse();
    (free, basis)
}

/// `value`, or the simple fraction that equals it within `tolerance`.
fn fraction(value: f64, tolerance: f64) -> f64 {
    (1..=MAX_PARTS)
        .map(|parts| (value * f64::from(parts)).round() / f64::from(parts))
        .find(|simple| {
            *simple != 0.0 && (simple - value).abs() <= tolerance * value.abs().max(1e-3)
        })
        .unwrap_or(value)
}

impl Group {
    /// Of all non-negative values that the data cannot distinguish from `values` (of all columns),
    /// those of least norm, in the order of the members.
    pub(super) fn minimum_norm(&self, values: &DVector<f64>) -> Vec<f64> {
        let own = DVector::from_fn(self.members.len(), |row, _| values[self.members[row]]);
        let shortest = &own - &self.null_directions * self.null_directions.tr_mul(&own);
        // Entries that are negative only by rounding become zero.
        let noise = 1e-12 * own.amax();
        let shortest = shortest.map(|entry| if entry.abs() <= noise { 0.0 } else { entry });
        nearest_non_negative(&shortest, &self.null_directions)
            .as_slice()
            .to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R of a matrix given row by row.
    fn triangle(rows: &[&[f64]]) -> DMatrix<f64> {
        let width = rows[0].len();
        let matrix = DMatrix::from_fn(rows.len(), width, |row, column| rows[row][column]);
        let upper = matrix.qr().r();
        let mut square = DMatrix::zeros(width, width);
        for row in 0..upper.nrows() {
            square.set_row(row, &upper.row(row));
        }
        square
    }

    #[test]
    fn the_papers_memory_column_gives_two_sums_and_table_1() {
        let found = identify(
            &triangle(&[
                &[1.0, 0.0, 1.0],
                &[0.7, 0.3, 1.0],
                &[0.2, 0.8, 1.0],
                &[0.1, 0.9, 1.0],
            ]),
            4,
        );
        assert_eq!(found.rank, 2);
        assert_eq!(found.identifiable, [false; 3]);
        assert_eq!(found.groups.len(), 1);
        let group = &found.groups[0];
        assert_eq!(group.determined, [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]);
        let shortest = group.minimum_norm(&DVector::from_row_slice(&[0.0, 248.0, 578.0]));
        for (value, published) in shortest.iter().zip([110.0, 358.0, 468.0]) {
            assert!((value - published).abs() < 1e-9, "{shortest:?}");
        }
    }

    #[test]
    fn a_minimum_norm_answer_is_never_negative() {
        let found = identify(
            &triangle(&[&[1.0, 0.0, 1.0], &[0.5, 0.5, 1.0], &[0.0, 1.0, 1.0]]),
            3,
        );
        // Sums 10 and 400: without the limit at zero the first value would be (10·2 − 400)/3.
        let values = DVector::from_row_slice(&[4.0, 394.0, 6.0]);
        let shortest = found.groups[0].minimum_norm(&values);
        assert!(shortest.iter().all(|&value| value >= 0.0), "{shortest:?}");
        for (value, nearest) in shortest.iter().zip([0.0, 390.0, 10.0]) {
            assert!((value - nearest).abs() < 1e-9, "{shortest:?}");
        }
    }

    #[test]
    fn one_window_gives_the_sum_of_constant_and_lines() {
        let found = identify(
            &triangle(&[&[1.0, 32.0, 0.0], &[0.4, 12.8, 1.0], &[0.1, 3.2, 2.0]]),
            3,
        );
        assert_eq!(found.identifiable, [false, false, true]);
        assert_eq!(found.groups[0].determined, [[1.0, 32.0]]);
    }

    #[test]
    fn columns_of_zeros_are_idle_and_in_no_group() {
        let found = identify(&triangle(&[&[1.0, 0.0], &[2.0, 0.0], &[3.0, 0.0]]), 3);
        assert_eq!(found.idle, [false, true]);
        assert_eq!(found.identifiable, [true, false]);
        assert!(found.groups.is_empty());
        assert_eq!(found.rank, 1);
    }

    #[test]
    fn factors_are_simple_where_they_can_be() {
        assert_eq!(fraction(2.000_000_000_1, 1e-9), 2.0);
        assert_eq!(fraction(1.0 / 3.0 + 1e-12, 1e-9), 1.0 / 3.0);
        assert_eq!(fraction(0.123_456_7, 1e-9), 0.123_456_7);
    }
}
