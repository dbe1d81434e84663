//! How a type becomes a table: one row for each value, and one column for each field, under the same name.

use rusqlite::{Row, Statement};

/// Name and SQL type of a column.
pub(crate) type Column = (&'static str, &'static str);

/// How rows are identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// By their position, in a column `id`. They may be replaced.
    Position,
    /// Not at all: rows stay in the order in which they were written.
    Order,
}

/// A type whose values are the rows of a table.
pub(crate) trait Record: Sized {
    /// Name of the table.
    const TABLE: &'static str;
    /// How its rows are identified.
    const KEY: Key;
    /// Its columns, without `id`.
    const COLUMNS: &'static [Column];
    /// [`Gap::about`] for missing rows.
    const ABOUT: &'static str;

    /// Binds the fields to parameters, beginning with parameter `from`.
    fn bind(&self, statement: &mut Statement<'_>, from: usize) -> rusqlite::Result<()>;

    /// Reads the fields from columns, beginning with column `from`.
    fn take(row: &Row<'_>, from: usize) -> rusqlite::Result<Self>;
}

/// Defines a type whose values are the rows of a table. Before the definition stand the table's name, how
/// its rows are identified, and [`Record::ABOUT`]. Fields after `without` have no column.
macro_rules! record {
    ($table:literal, $Key:ident, missing $about:literal =>
        $(#[$of_type:meta])*
        pub struct $Type:ident {
            $($(#[$of_field:meta])* pub $field:ident: $Value:ty,)+
        } $(without {
            $($(#[$of_left_out:meta])* pub $left_out:ident: $LeftOut:ty,)+
        })?
    ) => {
        $(#[$of_type])*
        pub struct $Type {
            $($(#[$of_field])* pub $field: $Value,)+
            $($($(#[$of_left_out])* pub $left_out: $LeftOut,)+)?
        }

        impl $crate::record::Record for $Type {
            const TABLE: &'static str = $table;
            const KEY: $crate::record::Key = $crate::record::Key::$Key;
            const COLUMNS: &'static [$crate::record::Column] =
                &[$((stringify!($field), <$Value as $crate::value::Value>::SQL)),+];
            const ABOUT: &'static str = $about;

            fn bind(
                &self,
                statement: &mut rusqlite::Statement<'_>,
                from: usize,
            ) -> rusqlite::Result<()> {
                let Self { $($field,)+ $($($left_out: _,)+)? } = self;
                let mut at = from;
                $(
                    $crate::value::Value::bind($field, statement, at)?;
                    at += 1;
                )+
                debug_assert_eq!(at, from + Self::COLUMNS.len(), "a parameter for each column");
                Ok(())
            }

            fn take(row: &rusqlite::Row<'_>, from: usize) -> rusqlite::Result<Self> {
                let mut columns = from..;
                let mut next = || columns.next().expect("there is always another number");
                Ok(Self {
                    $($field: $crate::value::Value::take(row, next())?,)+
                    $($($left_out: Default::default(),)+)?
                })
            }
        }
    };
}

pub(crate) use record;

/// The statement that creates the table of `R`. Names are quoted, since some are SQL keywords.
pub(crate) fn create<R: Record>() -> String {
    let id = match R::KEY {
        Key::Position => vec!["\"id\" INTEGER PRIMARY KEY".to_owned()],
        Key::Order => Vec::new(),
    };
    let fields = R::COLUMNS
        .iter()
        .map(|(name, sql)| format!("\"{name}\" {sql}"));
    let columns: Vec<String> = id.into_iter().chain(fields).collect();
    format!("CREATE TABLE \"{}\" ({})", R::TABLE, columns.join(", "))
}

/// The statement that writes a row of `R`, replacing a row with the same `id`.
pub(crate) fn insert<R: Record>() -> String {
    let (id, first) = match R::KEY {
        Key::Position => (Some("\"id\"".to_owned()), 1),
        Key::Order => (None, 0),
    };
    let names = R::COLUMNS.iter().map(|(name, _)| format!("\"{name}\""));
    let names: Vec<String> = id.into_iter().chain(names).collect();
    let marks: Vec<String> = (1..=R::COLUMNS.len() + first)
        .map(|at| format!("?{at}"))
        .collect();
    format!(
        "INSERT OR REPLACE INTO \"{}\" ({}) VALUES ({})",
        R::TABLE,
        names.join(", "),
        marks.join(", ")
    )
}

/// The statement that reads all rows of `R` in order, from a table that has only the columns `present`.
/// Columns that files of earlier versions lack are read as NULL.
pub(crate) fn select<R: Record>(present: &[String]) -> String {
    let id = match R::KEY {
        Key::Position => Some("\"id\"".to_owned()),
        Key::Order => None,
    };
    let names = R::COLUMNS.iter().map(|(name, _)| {
        if present.is_empty() || present.iter().any(|present| present == name) {
            format!("\"{name}\"")
        } else {
            "NULL".to_owned()
        }
    });
    let names: Vec<String> = id.into_iter().chain(names).collect();
    format!(
        "SELECT {} FROM \"{}\" ORDER BY rowid",
        names.join(", "),
        R::TABLE
    )
}
