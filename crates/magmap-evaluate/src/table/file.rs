//! Reading a table.

use anyhow::{Context, anyhow, bail, ensure};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest file that is read as a table, in bytes: some 100 million numbers.
const MOST_BYTES: u64 = 1 << 30;

/// A table of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The file.
    pub path: PathBuf,
    names: Option<Vec<String>>,
    /// Number of columns.
    pub columns: usize,
    /// Row by row.
    values: Vec<f64>,
}

impl Table {
    /// Reads numbers separated by commas. The first line may hold the names of the columns: then none of its cells is a number.
    ///
    /// # Errors
    /// A file that cannot be read or is too long, and a cell that is not a number, with its line and column.
    pub fn read(path: impl AsRef<Path>) -> anyhow::Result<Self> {
        let path = path.as_ref();
        let name = path.display();
        let unreadable = |error: io::Error| anyhow!("cannot read {name}: {error}");
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        ensure!(length <= MOST_BYTES, "{name}: expected at most {MOST_BYTES} bytes, found {length}");
        // A file without a length, such as a pipe, may still be endless.
        let mut file = BufReader::new(file.take(MOST_BYTES));
        let mut table = Self { path: path.to_owned(), names: None, columns: 0, values: Vec::new() };
        let (mut line, mut bytes) = (0, Vec::new());
        while file.read_until(b'\n', &mut bytes).map_err(unreadable)? > 0 {
            line += 1;
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").filter(|_| line == 1).unwrap_or(&bytes).trim_ascii();
            if !text.is_empty() {
                table.add(line, &cells(text))?;
            }
            bytes.clear();
        }
        ensure!(!table.values.is_empty(), "{name}: expected rows of numbers separated by commas, found none");
        Ok(table)
    }

    /// Adds a line that is not empty.
    fn add(&mut self, line: u64, cells: &[&[u8]]) -> anyhow::Result<()> {
        if self.columns == 0 {
            self.columns = cells.len();
            if cells.iter().all(|cell| number(cell).is_none()) {
                self.names = Some(cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect());
                return Ok(());
            }
        }
        let at = |column: usize| format!("{}, line {line}, column {}", self.path.display(), column + 1);
        let (expected, found) = (self.columns, cells.len());
        if found != expected {
            bail!("{}: expected {expected} columns, as above, found {found}", at(found.min(expected)));
        }
        for (column, cell) in cells.iter().enumerate() {
            match number(cell).filter(|value| value.is_finite()) {
                Some(value) => self.values.push(value),
                None => bail!("{}: expected a number, found \"{}\"", at(column), cell.escape_ascii()),
            }
        }
        Ok(())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// A row.
    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// The name of a column, or its number, counted from one, where it has none.
    pub fn name(&self, column: usize) -> String {
        self.names.as_ref().map_or_else(|| (column + 1).to_string(), |names| names[column].clone())
    }

    /// The column with a name, or else with a number counted from one.
    ///
    /// # Errors
    /// When there is no such column.
    pub fn column(&self, name: &str) -> anyhow::Result<usize> {
        let named = self.names.iter().flatten().position(|known| known == name);
        let numbered = || name.parse::<usize>().ok()?.checked_sub(1).filter(|column| *column < self.columns);
        named.or_else(numbered).with_context(|| {
            let numbers = format!("a number from 1 to {}", self.columns);
            let expected = match &self.names {
                Some(names) => format!("a target among {}, or {numbers}", names.join(", ")),
                None => format!("{numbers} as the target"),
            };
            format!("{}: expected {expected}, found {name}", self.path.display())
        })
    }
}

/// The cells of a line: commas in quotes do not separate.
fn cells(line: &[u8]) -> Vec<&[u8]> {
    let mut quoted = false;
    let between = line.split(|byte| {
        quoted ^= *byte == b'"';
        *byte == b',' && !quoted
    });
    between.map(|cell| unquoted(cell.trim_ascii())).collect()
}

fn unquoted(cell: &[u8]) -> &[u8] {
    cell.strip_prefix(b"\"").and_then(|cell| cell.strip_suffix(b"\"")).unwrap_or(cell)
}

fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Table, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        std::fs::write(&path, text).unwrap();
        Table::read(&path).map_err(|error| error.to_string().rsplit_once("/table.csv").unwrap().1.to_owned())
    }

    #[test]
    fn a_table_may_have_names_quotes_spaces_and_any_line_ends() {
        let table = read(b"\xef\xbb\xbfwidth, \"strength, in MPa\" \r\n1.5,-2e1\r\n\r\n .5 , 4\r\n").unwrap();
        assert_eq!(
            (table.rows(), table.columns, table.row(0), table.row(1)),
            (2, 2, &[1.5, -20.0][..], &[0.5, 4.0][..])
        );
        assert_eq!((table.name(0), table.name(1)), ("width".into(), "strength, in MPa".into()));
        let number = |name: &str| table.column(name).map_err(|error| error.to_string());
        assert_eq!((number("width"), number("2")), (Ok(0), Ok(1)));
        for name in ["0", "3", "height"] {
            let error = number(name).unwrap_err();
            assert!(error.contains("a target among width, strength, in MPa, or a number from 1 to 2"), "{error}");
        }
        let bare = read(b"1,2,3\n4,5,6").unwrap();
        assert_eq!((bare.rows(), bare.name(2)), (2, "3".into()));
        let renamed = read(b"a,b,c\n1.0,2,3\n4,5,6\n").unwrap();
        assert_eq!(bare.values, renamed.values);
    }

    #[test]
    fn damage_is_named_with_line_and_column() {
        for (text, expected) in [
            (&b"a,b\n1,2\n3,x\n"[..], ", line 3, column 2: expected a number, found \"x\""),
            (b"1,2\n3,\n", ", line 2, column 2: expected a number, found \"\""),
            (b"1,2\n3,NaN\n", ", line 2, column 2: expected a number, found \"NaN\""),
            (b"1,2\n\n3,1e999\n", ", line 3, column 2: expected a number, found \"1e999\""),
            (b"1,2\n\xff,4\n", ", line 2, column 1: expected a number, found \"\\xff\""),
            (b"a,2\n1,2\n", ", line 1, column 1: expected a number, found \"a\""),
            (b"1,2,3\n4,5\n", ", line 2, column 3: expected 3 columns, as above, found 2"),
            (b"1,2\n4,5,6\n", ", line 2, column 3: expected 2 columns, as above, found 3"),
            (b"", ": expected rows of numbers separated by commas, found none"),
            (b"a,b\n", ": expected rows of numbers separated by commas, found none"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected);
        }
        let error = Table::read("/nowhere/table.csv").unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nowhere/table.csv: "), "{error}");
    }
}
