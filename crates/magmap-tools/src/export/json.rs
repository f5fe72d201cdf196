//! A report as JSON.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::Error;
use super::file::write_atomically;

/// Writes a report as indented JSON. A number that is not finite becomes `null`, because JSON has none.
pub fn write_json<T: Serialize + ?Sized>(path: &Path, report: &T) -> Result<(), Error> {
    write_atomically(path, |writer| {
        serde_json::to_writer_pretty(&mut *writer, report).map_err(io::Error::from)?;
        writer.write_all(b"\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use streaming_gp::report::NamedValue;

    #[test]
    fn a_report_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let report = vec![NamedValue { name: "lengthscale".into(), value: 0.1 + 0.2 }];
        write_json(&path, &report).unwrap();
        let read: Vec<NamedValue> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, report);
    }
}
