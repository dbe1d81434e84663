//! The page that describes the format names everything that the file holds.

use membound_run::{APPLICATION, LAYOUT, RunData, write};

const PAGE: &str = include_str!("../../../../docs/formats/run.md");

/// The part of the page that describes a table.
fn section(table: &str) -> &'static str {
    let (_, after) = PAGE
        .split_once(&format!("\n### `{table}`"))
        .unwrap_or_else(|| panic!("no section on table {table}"));
    after.split("\n#").next().unwrap_or(after)
}

/// Tables and their columns, as SQLite has them.
fn tables() -> Vec<(String, Vec<String>)> {
    let home = tempfile::tempdir().expect("a directory can be made");
    let path = home.path().join("run");
    write(&path, &RunData::default()).expect("it can be written");
    let connection = rusqlite::Connection::open(&path).expect("it is a database");
    let names = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).expect("the statement is right");
        let rows = statement.query_map([], |row| row.get(0)).expect("it runs");
        rows.map(|name| name.expect("it is text")).collect()
    };
    names("SELECT name FROM sqlite_schema WHERE type = 'table'")
        .into_iter()
        .map(|table| {
            let columns = names(&format!("SELECT name FROM pragma_table_info('{table}')"));
            (table, columns)
        })
        .collect()
}

#[test]
fn every_table_and_column_is_on_the_page_and_nothing_else() {
    let tables = tables();
    for (table, columns) in &tables {
        let section = section(table);
        for column in columns {
            let row = format!("\n| `{column}` |");
            assert!(section.contains(&row), "{table}.{column} is not described");
        }
        let described = section
            .lines()
            .filter(|line| line.starts_with("| `"))
            .count();
        assert_eq!(described, columns.len(), "table {table}");
    }
    assert_eq!(PAGE.matches("\n### `").count(), tables.len());
}

#[test]
fn the_numbers_that_identify_a_run_are_on_the_page() {
    assert!(PAGE.contains(&format!(
        "`application_id` {APPLICATION} ({APPLICATION:#x})"
    )));
    assert!(PAGE.contains(&format!("`user_version` {LAYOUT}")));
}

/// The queries of the page, each a line in a block for the shell.
#[test]
fn the_queries_on_the_page_run() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    write(&path, &RunData::default()).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let blocks = PAGE.split("```sql\n").skip(1);
    let mut count = 0;
    for block in blocks {
        let sql = block.split("```").next().unwrap();
        let mut statement = connection
            .prepare(sql)
            .unwrap_or_else(|error| panic!("{error}: {sql}"));
        statement.query([]).unwrap().next().unwrap();
        count += 1;
    }
    assert!(count >= 4, "{count}");
}
