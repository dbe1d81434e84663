//! Turns a fit into the parameters, combinations and levels that a model reports.

use membound_types::{
    Combination, Model, ModelLevel, Parameter, ParameterRole, SizeMeaning, Topology,
};
use nalgebra::DMatrix;

use super::design::Column;
use super::free::{FreeParameter, free_parameters};
use super::identify::Group;
use super::predict::{Interval, estimate};
use super::problem::{Fitted, Problem};
use super::rates::model_levels;
use super::topology::{fresh_symbol, symbols_in_use};
use crate::declared::bytes;
use crate::stats::student_95;

/// A parameter, and the columns of the joint problem on which it depends, each with the derivative
/// of the parameter by the column.
struct Source {
    parameter: Parameter,
    columns: Vec<(usize, f64)>,
}

/// Fills parameters, combinations, covariance and levels of `model`, and puts fitted sizes into
/// its topology.
pub(super) fn answer(
    problem: &Problem<'_>,
    fitted: &Fitted,
    sigma: f64,
    freedom: usize,
    model: &mut Model,
) {
    let identified = &fitted.identified;
    let values = shortest(fitted);
    let mut sources = linear_sources(problem, &values);
    let free_parameters = match problem.options.sizes {
        membound_types::SizeMode::Fixed => Vec::new(),
        membound_types::SizeMode::Free => free_parameters(problem, &fitted.edges),
    };
    sources.extend(free_parameter_sources(problem, fitted, &free_parameters));
    model.covariance = covariance(&sources, &identified.covariance, sigma);
    let symbols = column_symbols(&sources, values.len() + free_parameters.len());
    let student = student_95(freedom.max(1));
    for (place, source) in sources.iter_mut().enumerate() {
        let parameter = &mut source.parameter;
        if parameter.fixed {
            continue;
        }
        let unknown = source
            .columns
            .iter()
            .map(|&(column, _)| column)
            .find(|&column| !identified.identifiable[column]);
        if let Some(column) = unknown {
            parameter.identifiable = false;
            parameter.reason = Some(reason(problem, fitted, &symbols, column));
            continue;
        }
        let error = model.covariance[place][place].max(0.0).sqrt();
        // A size alone has a relative error, so its interval is a factor; a difference of sizes has not.
        let interval = if parameter.role == ParameterRole::Size && source.columns.len() == 1
            || parameter.role == ParameterRole::Steepness
        {
            Interval::to_a_factor(parameter.value, error, student)
        } else {
            Interval::of(parameter.value, error, student)
        };
        parameter.std_error = Some(error);
        parameter.low = Some(interval.low);
        parameter.high = Some(interval.high);
    }
    model.parameters = sources.into_iter().map(|source| source.parameter).collect();
    for group in &identified.groups {
        for factors in &group.determined {
            if let Some(combination) = combination(group, factors, &symbols, model, student) {
                model.combinations.push(combination);
            }
        }
    }
    if !free_parameters.is_empty() {
        put_sizes(model, &fitted.edges.reach, &fitted.edges.steepness);
    }
    model.levels = levels(problem, model, &free_parameters);
}

/// The levels of the fitted model, with the intervals of the sizes that were fitted.
fn levels(problem: &Problem<'_>, model: &Model, free: &[FreeParameter]) -> Vec<ModelLevel> {
    let mut levels = model_levels(&model.topology, problem.data, &|factors| {
        estimate(model, factors)
    });
    let sizes = model
        .parameters
        .iter()
        .filter(|parameter| parameter.role == ParameterRole::Size);
    let sized = free.iter().filter_map(|parameter| match parameter {
        FreeParameter::Reach(level) => Some(*level),
        FreeParameter::Exponent(_) => None,
    });
    for (level, size) in sized.zip(sizes) {
        let level = &mut levels[level];
        level.size_low_bytes = size.low.map(|low| low.round() as u64);
        level.size_high_bytes = size.high.map(|high| high.round() as u64);
    }
    levels
}

/// Values of the fitted terms; the minimum-norm values for those that are not identifiable.
fn shortest(fitted: &Fitted) -> Vec<f64> {
    let mut values = fitted.solved.values.clone();
    for group in &fitted.identified.groups {
        // Times and sizes have different units and no common norm.
        if group.members.iter().any(|&member| member >= values.len()) {
            continue;
        }
        let shortest = group.minimum_norm(&values);
        for (&member, value) in group.members.iter().zip(shortest) {
            values[member] = value;
        }
    }
    values.as_slice().to_vec()
}

fn linear_sources(problem: &Problem<'_>, values: &[f64]) -> Vec<Source> {
    problem
        .design
        .terms
        .iter()
        .enumerate()
        .map(|(index, term)| {
            let place = problem.fitted.iter().position(|&fitted| fitted == index);
            Source {
                parameter: Parameter {
                    symbol: term.symbol.clone(),
                    value: place.map_or(problem.given[index].unwrap_or(0.0), |place| values[place]),
                    unit: "ns".to_owned(),
                    related_to: term.related_to.clone(),
                    std_error: None,
                    low: None,
                    high: None,
                    identifiable: true,
                    reason: None,
                    fixed: place.is_none(),
                    role: term.role,
                    name: term.name.clone(),
                },
                columns: place.map(|place| (place, 1.0)).into_iter().collect(),
            }
        })
        .collect()
}

/// Fitted sizes, own bytes or reach as the topology counts them, and exponents.
fn free_parameter_sources(
    problem: &Problem<'_>,
    fitted: &Fitted,
    free_columns: &[FreeParameter],
) -> Vec<Source> {
    let topology = problem.design.topology();
    let used = symbols_in_use(topology);
    let first = problem.fitted.len();
    let reach = &fitted.edges.reach;
    free_columns
        .iter()
        .enumerate()
        .map(|(place, &parameter)| {
            let (FreeParameter::Reach(level) | FreeParameter::Exponent(level)) = parameter;
            let name = &topology.levels[level].name;
            let inside = level
                .checked_sub(1)
                .filter(|_| topology.sizes == SizeMeaning::Own);
            let (letter, unit, role, what) = match parameter {
                FreeParameter::Reach(_) => ("s", "bytes", ParameterRole::Size, "size"),
                FreeParameter::Exponent(_) => ("g", "1", ParameterRole::Steepness, "steepness"),
            };
            let mut columns = Vec::new();
            let value = match parameter {
                FreeParameter::Reach(_) => {
                    columns.push((first + place, reach[level]));
                    let within = inside.map(FreeParameter::Reach);
                    let within = free_columns.iter().position(|&other| Some(other) == within);
                    if let (Some(within), Some(inside)) = (within, inside) {
                        columns.push((first + within, -reach[inside]));
                    }
                    reach[level] - inside.map_or(0.0, |inside| reach[inside])
                }
                FreeParameter::Exponent(_) => {
                    columns.push((first + place, fitted.edges.steepness[level]));
                    fitted.edges.steepness[level]
                }
            };
            Source {
                parameter: Parameter {
                    symbol: fresh_symbol(&used, &format!("{letter}{}", level + 1)),
                    value,
                    unit: unit.to_owned(),
                    related_to: name.clone(),
                    std_error: None,
                    low: None,
                    high: None,
                    identifiable: true,
                    reason: None,
                    fixed: false,
                    role,
                    name: format!("{what} of {name}"),
                },
                columns,
            }
        })
        .collect()
}

/// Covariance of the parameters by error propagation through their derivatives.
fn covariance(sources: &[Source], inverse: &DMatrix<f64>, sigma: f64) -> Vec<Vec<f64>> {
    let variance = sigma * sigma;
    sources
        .iter()
        .map(|row| {
            sources
                .iter()
                .map(|column| {
                    let mut sum = 0.0;
                    for &(left, by_left) in &row.columns {
                        for &(right, by_right) in &column.columns {
                            sum += by_left * by_right * inverse[(left, right)];
                        }
                    }
                    sum * variance
                })
                .collect()
        })
        .collect()
}

/// Symbol of each column of the joint problem.
fn column_symbols(sources: &[Source], count: usize) -> Vec<String> {
    let mut symbols = vec![String::new(); count];
    for source in sources {
        if let Some(&(column, _)) = source.columns.first() {
            symbols[column].clone_from(&source.parameter.symbol);
        }
    }
    symbols
}

/// A combination of a group's parameters that the data determine; `None` if it involves sizes or
/// exponents, on which the time does not depend linearly.
fn combination(
    group: &Group,
    factors: &[f64],
    symbols: &[String],
    model: &Model,
    student: f64,
) -> Option<Combination> {
    let mut parts: Vec<(usize, f64)> = Vec::new();
    for (&member, &factor) in group.members.iter().zip(factors) {
        if factor == 0.0 {
            continue;
        }
        let place = model
            .parameters
            .iter()
            .position(|parameter| parameter.symbol == symbols[member])?;
        if matches!(
            model.parameters[place].role,
            ParameterRole::Size | ParameterRole::Steepness
        ) {
            return None;
        }
        parts.push((place, factor));
    }
    let mut value = 0.0;
    let mut variance = 0.0;
    for &(left, factor) in &parts {
        value += factor * model.parameters[left].value;
        for &(right, other) in &parts {
            variance += factor * other * model.covariance[left][right];
        }
    }
    let error = variance.max(0.0).sqrt();
    let interval = if parts.iter().any(|&(_, factor)| factor < 0.0) {
        Interval::unlimited(value, error, student)
    } else {
        Interval::of(value, error, student)
    };
    Some(Combination {
        symbols: parts
            .iter()
            .map(|&(place, _)| model.parameters[place].symbol.clone())
            .collect(),
        coefficients: parts.iter().map(|&(_, factor)| factor).collect(),
        value,
        unit: "ns".to_owned(),
        std_error: error,
        low: interval.low,
        high: interval.high,
    })
}

/// The reason why the data do not determine a column of the joint problem.
fn reason(problem: &Problem<'_>, fitted: &Fitted, symbols: &[String], column: usize) -> String {
    let identified = &fitted.identified;
    let topology = problem.design.topology();
    if identified.idle[column] {
        return match problem.fitted.get(column) {
            Some(&term) => idle_term(topology, problem.design.terms[term].column),
            None => "the areas measured do not pass from this level to the next, or both take \
                     the same time"
                .to_owned(),
        };
    }
    let others: Vec<&str> = identified
        .groups
        .iter()
        .find(|group| group.members.contains(&column))
        .into_iter()
        .flat_map(|group| &group.members)
        .filter(|&&member| member != column)
        .map(|&member| symbols[member].as_str())
        .collect();
    format!("cannot be distinguished from {}", others.join(", "))
}

/// The reason why no data depend on a term.
fn idle_term(topology: &Topology, column: Column) -> String {
    match column {
        Column::Once(component) | Column::Line(component) => {
            let symbol = &topology.components[component].symbol;
            let mut levels = topology.levels.iter();
            match levels.find(|level| level.path.contains_key(symbol)) {
                Some(level) => format!("no area is large enough to reach `{}`", level.name),
                None => "it lies on the path to no level".to_owned(),
            }
        }
        Column::Tlb(index) => {
            let tlb = &topology.tlb[index];
            let reach = bytes(tlb.entries.saturating_mul(tlb.page_bytes));
            format!("no area exceeds the {reach} that this TLB reaches")
        }
        Column::PageTable => {
            let term = topology.page_table.as_ref();
            let start = bytes(term.map_or(0, |term| term.start_bytes));
            format!("no area exceeds the {start} from which it counts")
        }
    }
}

/// Puts fitted reaches and exponents into the topology of `model`, as own bytes or reach.
fn put_sizes(model: &mut Model, reach: &[f64], steepness: &[f64]) {
    let mut inside = 0;
    let sizes = model.topology.sizes;
    for ((level, reach), &steepness) in model.topology.levels.iter_mut().zip(reach).zip(steepness) {
        let reach = reach.round() as u64;
        level.size_bytes = Some(match sizes {
            SizeMeaning::Reach => reach,
            SizeMeaning::Own => reach.saturating_sub(inside),
        });
        level.steepness = steepness;
        inside = reach;
    }
}
