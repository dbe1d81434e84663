//! Least squares: reduces a tall weighted design to a triangle, and solves small problems.
//!
//! The tall matrix is read once for each set of weights and reduced to a triangle by
//! Householder reflections, in blocks of rows that stay in the cache. Normal equations are never
//! formed, because they square the condition number. All later steps work on the triangle, with
//! columns scaled to unit length. Nothing here depends on the meaning of a column.

use nalgebra::{DMatrix, DVector};

/// Rows reduced at once: 15 columns of 256 rows are 30 KiB.
const BLOCK: usize = 256;

/// Most sweeps of the Jacobi method; matrices of 20 columns take six to eight.
const MAX_SWEEPS: usize = 60;

/// Upper triangle R and right-hand side Qᵀb of a least-squares problem.
#[derive(Clone, Debug)]
pub(super) struct Triangle {
    /// Number of columns, including the right-hand side.
    width: usize,
    /// Entries in column-major order, `width` per column.
    entries: Vec<f64>,
}

impl Triangle {
    /// The triangle of zero rows, for `columns` columns and a right-hand side.
    pub(super) fn empty(columns: usize) -> Self {
        let width = columns + 1;
        Self {
            width,
            entries: vec![0.0; width * width],
        }
    }

    /// The triangle of the given `rows`, with each row of `columns` and `right` multiplied by its
    /// entry of `scale`.
    pub(super) fn of(columns: &[&[f64]], right: &[f64], scale: &[f64], rows: &[usize]) -> Self {
        let mut triangle = Self::empty(columns.len());
        let mut block = vec![0.0; triangle.width * BLOCK];
        for rows in rows.chunks(BLOCK) {
            let all = columns.iter().copied().chain(std::iter::once(right));
            for (kept, column) in block.chunks_exact_mut(BLOCK).zip(all) {
                for (kept, &row) in kept.iter_mut().zip(rows) {
                    *kept = column[row] * scale[row];
                }
            }
            triangle.absorb(&mut block, BLOCK, rows.len());
        }
        triangle
    }

    /// The triangle of the rows of several problems together; `None` without parts.
    pub(super) fn combined<'a>(parts: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for part in parts {
            match &mut sum {
                None => sum = Some(part.clone()),
                Some(sum) => {
                    let mut block = part.entries.clone();
                    sum.absorb(&mut block, part.width, part.width);
                }
            }
        }
        sum
    }

    /// Adds `rows` rows to the triangle; the columns of `block` start `pitch` entries apart and are
    /// overwritten.
    fn absorb(&mut self, block: &mut [f64], pitch: usize, rows: usize) {
        let width = self.width;
        for pivot in 0..width {
            let (before, after) = block.split_at_mut((pivot + 1) * pitch);
            let reflector = &mut before[pivot * pitch..pivot * pitch + rows];
            let below = dot(reflector, reflector);
            if below == 0.0 {
                continue;
            }
            let head = self.entries[pivot * width + pivot];
            let length = (head * head + below).sqrt().copysign(-head);
            let first = head - length;
            self.entries[pivot * width + pivot] = length;
            // The reflection is I − 2vvᵀ/vᵀv, with v the head and the rows of the block.
            let factor = -1.0 / (length * first);
            for column in pivot + 1..width {
                let start = (column - pivot - 1) * pitch;
                let other = &mut after[start..start + rows];
                let top = &mut self.entries[column * width + pivot];
                let share = factor * (first * *top + dot(reflector, other));
                *top -= share * first;
                for (other, &along) in other.iter_mut().zip(reflector.iter()) {
                    *other -= share * along;
                }
            }
        }
    }

    /// R as a matrix, without the right-hand side.
    pub(super) fn matrix(&self) -> DMatrix<f64> {
        let columns = self.width - 1;
        DMatrix::from_fn(columns, columns, |row, column| {
            if row <= column {
                self.entries[column * self.width + row]
            } else {
                0.0
            }
        })
    }

    /// The right-hand side that belongs to [`Self::matrix`].
    pub(super) fn right(&self) -> DVector<f64> {
        let columns = self.width - 1;
        DVector::from_fn(columns, |row, _| self.entries[columns * self.width + row])
    }

    /// True if all entries are finite.
    pub(super) fn is_finite(&self) -> bool {
        self.entries.iter().all(|entry| entry.is_finite())
    }
}

/// Scalar product with eight partial sums, so that the compiler can vectorise it.
fn dot(left: &[f64], right: &[f64]) -> f64 {
    let mut strands = [0.0; 8];
    let (lefts, left_rest) = left.as_chunks::<8>();
    let (rights, right_rest) = right.as_chunks::<8>();
    for (left, right) in lefts.iter().zip(rights) {
        for strand in 0..8 {
            strands[strand] += left[strand] * right[strand];
        }
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(a, b)| a * b).sum();
    strands.iter().sum::<f64>() + rest
}

/// Lengths of the columns; 1 for a column of zeros, so that they can be divisors.
pub(super) fn lengths(matrix: &DMatrix<f64>) -> Vec<f64> {
    matrix
        .column_iter()
        .map(|column| {
            let length = column.norm();
            if length > 0.0 { length } else { 1.0 }
        })
        .collect()
}

/// `matrix` with every column divided by its entry of `lengths`.
pub(super) fn scaled(mut matrix: DMatrix<f64>, lengths: &[f64]) -> DMatrix<f64> {
    for (mut column, length) in matrix.column_iter_mut().zip(lengths) {
        column /= *length;
    }
    matrix
}

/// Singular values and right singular vectors.
#[derive(Clone, Debug)]
pub(super) struct Spectrum {
    /// Singular values, largest first.
    pub(super) values: Vec<f64>,
    /// Right singular vectors, as columns in the order of `values`.
    pub(super) vectors: DMatrix<f64>,
    /// Left singular vectors multiplied by their values, in the same order.
    pub(super) images: DMatrix<f64>,
}

/// Singular values by rotations of pairs of columns (one-sided Jacobi method).
///
/// nalgebra's own decomposition returns wrong values for some matrices without full rank
/// (its issue 1172, not fixed in 0.35), and the rank is what this function is needed for.
/// The Jacobi method is also more accurate for small singular values.
pub(super) fn spectrum(matrix: &DMatrix<f64>) -> Spectrum {
    let count = matrix.ncols();
    let mut images = matrix.clone();
    let mut vectors = DMatrix::identity(count, count);
    for _ in 0..MAX_SWEEPS {
        let mut turned = false;
        for first in 0..count {
            for second in first + 1..count {
                turned |= straighten(&mut images, &mut vectors, first, second);
            }
        }
        if !turned {
            break;
        }
    }
    let mut order: Vec<(f64, usize)> = images
        .column_iter()
        .map(|column| column.norm())
        .zip(0..)
        .collect();
    order.sort_by(|left, right| right.0.total_cmp(&left.0));
    let places: Vec<usize> = order.iter().map(|&(_, place)| place).collect();
    Spectrum {
        values: order.iter().map(|&(value, _)| value).collect(),
        vectors: vectors.select_columns(&places),
        images: images.select_columns(&places),
    }
}

/// Rotates two columns until they are orthogonal; false if they already were.
fn straighten(
    images: &mut DMatrix<f64>,
    vectors: &mut DMatrix<f64>,
    first: usize,
    second: usize,
) -> bool {
    let alpha = images.column(first).norm_squared();
    let beta = images.column(second).norm_squared();
    let gamma = images.column(first).dot(&images.column(second));
    if gamma == 0.0 || gamma.abs() <= f64::EPSILON * (alpha * beta).sqrt() {
        return false;
    }
    let zeta = (beta - alpha) / (2.0 * gamma);
    let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
    let cosine = 1.0 / tangent.hypot(1.0);
    let sine = cosine * tangent;
    for matrix in [images, vectors] {
        for row in 0..matrix.nrows() {
            let (left, right) = (matrix[(row, first)], matrix[(row, second)]);
            matrix[(row, first)] = cosine * left - sine * right;
            matrix[(row, second)] = sine * left + cosine * right;
        }
    }
    true
}

impl Spectrum {
    /// Number of singular values above `tolerance` times the largest.
    pub(super) fn rank(&self, tolerance: f64) -> usize {
        let largest = self.values.first().copied().unwrap_or(0.0);
        self.values
            .iter()
            .take_while(|&&value| value > 0.0 && value > tolerance * largest)
            .count()
    }

    /// Shortest solution of the least-squares problem with this matrix, in the first `rank`
    /// directions.
    pub(super) fn solve(&self, rank: usize, right: &DVector<f64>) -> DVector<f64> {
        let mut solution = DVector::zeros(self.vectors.nrows());
        for place in 0..rank {
            let along = self.images.column(place).dot(right) / self.values[place].powi(2);
            solution.axpy(along, &self.vectors.column(place), 1.0);
        }
        solution
    }

    /// (MᵀM)⁺ in the first `rank` directions.
    pub(super) fn inverse_square(&self, rank: usize) -> DMatrix<f64> {
        let count = self.vectors.nrows();
        let mut inverse = DMatrix::zeros(count, count);
        for place in 0..rank {
            let vector = self.vectors.column(place);
            let factor = self.values[place].powi(-2);
            inverse.ger(factor, &vector, &vector, 1.0);
        }
        inverse
    }
}

/// Solution of min ‖matrix·x − right‖ with x ≥ 0.
///
/// Uses the active-set method of C. L. Lawson and R. J. Hanson (Solving Least Squares Problems,
/// 1974, chapter 23), starting with the columns whose entry of `start` is positive. Columns must
/// have about unit length. A column that depends on those in use, within `tolerance`, is not used,
/// so that of many solutions the method finds one with few positive entries.
pub(super) fn non_negative(
    matrix: &DMatrix<f64>,
    right: &DVector<f64>,
    start: &DVector<f64>,
    tolerance: f64,
) -> DVector<f64> {
    let count = matrix.ncols();
    let mut solution = DVector::zeros(count);
    let mut used: Vec<usize> = Vec::new();
    for column in (0..count).filter(|&column| start[column] > 0.0) {
        used.push(column);
        if on_columns(matrix, right, &used, tolerance).is_none() {
            used.pop();
        }
    }
    settle(matrix, right, tolerance, &mut solution, &mut used);
    // Rounding error of the gradient, for columns of unit length.
    let slack = 10.0 * f64::EPSILON * right.norm() * (count as f64 + 1.0);
    let mut refused = vec![false; count];
    for _ in 0..20 * count {
        let gradient = matrix.tr_mul(&(right - matrix * &solution));
        let Some(best) = (0..count)
            .filter(|column| !refused[*column] && !used.contains(column))
            .filter(|&column| gradient[column] > slack)
            .max_by(|&left, &right| gradient[left].total_cmp(&gradient[right]))
        else {
            break;
        };
        used.push(best);
        match on_columns(matrix, right, &used, tolerance) {
            Some(values) if values.last().is_some_and(|&value| value > 0.0) => {
                settle(matrix, right, tolerance, &mut solution, &mut used);
                refused.fill(false);
            }
            _ => {
                // The gradient of this column was only rounding error.
                used.pop();
                refused[best] = true;
            }
        }
    }
    solution
}

/// Moves `solution` to the least-squares answer on the `used` columns, and removes columns whose
/// entry reaches zero on the way.
fn settle(
    matrix: &DMatrix<f64>,
    right: &DVector<f64>,
    tolerance: f64,
    solution: &mut DVector<f64>,
    used: &mut Vec<usize>,
) {
    while !used.is_empty() {
        let Some(values) = on_columns(matrix, right, used, tolerance) else {
            // A subset of independent columns is independent, so only overflow leads here.
            return;
        };
        let step = used
            .iter()
            .zip(&values)
            .filter(|&(_, &value)| value <= 0.0)
            .map(|(&column, &value)| {
                let previous: f64 = solution[column];
                if previous > 0.0 {
                    previous / (previous - value)
                } else {
                    0.0
                }
            })
            .fold(1.0, f64::min);
        let all_positive = values.iter().all(|&value| value > 0.0);
        for (&column, &value) in used.iter().zip(&values) {
            let previous = solution[column];
            solution[column] = if all_positive {
                value
            } else {
                previous + step * (value - previous)
            };
        }
        if all_positive {
            return;
        }
        let mut nearest: Option<(usize, f64)> = None;
        for (&column, &value) in used.iter().zip(&values) {
            if value <= 0.0 && nearest.is_none_or(|(_, held)| solution[column] < held) {
                nearest = Some((column, solution[column]));
            }
        }
        // Rounding can leave a small rest of the entry that this step reduces to zero.
        if let Some((column, _)) = nearest {
            solution[column] = 0.0;
        }
        let is_positive = |column: &usize, value: f64| value > 0.0 || solution[*column] > 0.0;
        let kept: Vec<usize> = used
            .iter()
            .zip(&values)
            .filter(|&(column, &value)| is_positive(column, value))
            .map(|(&column, _)| column)
            .collect();
        for &column in used.iter() {
            if !kept.contains(&column) {
                solution[column] = 0.0;
            }
        }
        *used = kept;
    }
}

/// Least-squares answer on the `used` columns; `None` if the last of them depends on the others
/// within `tolerance`, or the numbers overflow.
fn on_columns(
    matrix: &DMatrix<f64>,
    right: &DVector<f64>,
    used: &[usize],
    tolerance: f64,
) -> Option<Vec<f64>> {
    if used.len() > matrix.nrows() {
        return None;
    }
    let columns: Vec<&[f64]> = used
        .iter()
        .map(|&column| {
            let start = column * matrix.nrows();
            &matrix.as_slice()[start..start + matrix.nrows()]
        })
        .collect();
    let ones = vec![1.0; matrix.nrows()];
    let rows: Vec<usize> = (0..matrix.nrows()).collect();
    let triangle = Triangle::of(&columns, right.as_slice(), &ones, &rows);
    let upper = triangle.matrix();
    let count = used.len();
    let length = upper.column(count - 1).norm();
    if upper[(count - 1, count - 1)].abs() <= tolerance * length {
        return None;
    }
    let values = upper.solve_upper_triangular(&triangle.right())?;
    values
        .iter()
        .all(|value| value.is_finite())
        .then(|| values.as_slice().to_vec())
}

/// The point of `start + directions·z ≥ 0` that is nearest to `start`, by least distance
/// programming (Lawson and Hanson, chapter 23). `directions` are orthonormal; the caller
/// guarantees that such a point exists.
pub(super) fn nearest_non_negative(
    start: &DVector<f64>,
    directions: &DMatrix<f64>,
) -> DVector<f64> {
    let size = start.amax();
    if size == 0.0 || start.iter().all(|&entry| entry >= 0.0) {
        return start.clone();
    }
    let freedom = directions.ncols();
    let system = DMatrix::from_fn(freedom + 1, start.len(), |row, column| {
        if row < freedom {
            directions[(column, row)]
        } else {
            -start[column] / size
        }
    });
    let mut right = DVector::zeros(freedom + 1);
    right[freedom] = 1.0;
    let lengths = lengths(&system);
    let system = scaled(system, &lengths);
    let none = DVector::zeros(start.len());
    let dual = non_negative(&system, &right, &none, 1e-13);
    let residual = &system * dual - right;
    let scale = -residual[freedom];
    if scale <= 0.0 {
        return start.map(|entry| entry.max(0.0));
    }
    let step = residual.rows(0, freedom) * (size / scale);
    (start + directions * step).map(|entry| entry.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random entries between −1 and 1, the same in every run.
    fn entries(seed: f64) -> impl Fn(usize, usize) -> f64 {
        move |row, column| {
            (((row * 31 + column * 17) as f64 * 12.9898 + seed).sin() * 43758.5453).fract()
        }
    }

    #[test]
    fn blocks_of_rows_give_the_triangle_of_the_whole() {
        let rows = 3 * BLOCK + 7;
        let whole = DMatrix::from_fn(rows, 4, entries(0.5));
        let columns: Vec<&[f64]> = (0..3)
            .map(|column| &whole.as_slice()[column * rows..(column + 1) * rows])
            .collect();
        let right = &whole.as_slice()[3 * rows..];
        let scale: Vec<f64> = (0..rows).map(|row| 1.0 + row as f64 / 100.0).collect();
        let places: Vec<usize> = (0..rows).collect();
        let triangle = Triangle::of(&columns, right, &scale, &places);
        let (first, second) = places.split_at(300);
        let parts = [first, second].map(|rows| Triangle::of(&columns, right, &scale, rows));
        let together = Triangle::combined(parts.iter()).unwrap();
        let weighted = DMatrix::from_fn(rows, 4, |row, column| whole[(row, column)] * scale[row]);
        let expected = weighted.columns(0, 3).tr_mul(&weighted.columns(0, 3));
        for found in [&triangle, &together] {
            let found = found.matrix().tr_mul(&found.matrix());
            assert!((found - &expected).amax() < 1e-9 * expected.amax());
        }
    }

    #[test]
    fn singular_values_of_ones_are_right() {
        // Rank one: nalgebra 0.35 returns wrong values for it.
        let found = spectrum(&DMatrix::from_element(3, 5, 1.0));
        assert!((found.values[0] - 15.0_f64.sqrt()).abs() < 1e-14);
        assert!(found.values[1..].iter().all(|&value| value < 1e-15));
        assert_eq!(found.rank(1e-13), 1);
    }

    #[test]
    fn non_negative_solutions_are_optimal() {
        for seed in 0..50 {
            let seed = f64::from(seed);
            let matrix = DMatrix::from_fn(12, 6, entries(seed));
            let lengths = lengths(&matrix);
            let matrix = scaled(matrix, &lengths);
            let right = DVector::from_fn(12, |row, _| entries(seed + 0.3)(row, 9));
            let cold = non_negative(&matrix, &right, &DVector::zeros(6), 1e-12);
            let warm = non_negative(&matrix, &right, &DVector::from_element(6, 1.0), 1e-12);
            assert!((&cold - &warm).amax() < 1e-12, "{cold} {warm}");
            let gradient = matrix.tr_mul(&(&right - &matrix * &cold));
            for (value, slope) in cold.iter().zip(gradient.iter()) {
                assert!(*value >= 0.0 && *slope < 1e-12, "{value} {slope}");
                assert!(*value == 0.0 || slope.abs() < 1e-12, "{value} {slope}");
            }
        }
    }

    #[test]
    fn the_nearest_non_negative_point_is_on_the_line_and_at_its_end() {
        let direction = DMatrix::from_row_slice(3, 1, &[1.0, -1.0, 1.0]) / 3.0_f64.sqrt();
        let start = DVector::from_row_slice(&[-2.0, 5.0, 3.0]);
        let found = nearest_non_negative(&start, &direction);
        let expected = DVector::from_row_slice(&[0.0, 3.0, 5.0]);
        assert!((found - expected).amax() < 1e-12);
    }
}
