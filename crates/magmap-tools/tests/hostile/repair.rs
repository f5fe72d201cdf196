//! Checksums set right, so that a changed input reaches what they guard.

use magmap::store::Database;

/// Takes the checksums of MCAP's chunks away, which is allowed.
pub(super) fn mcap(bytes: &mut [u8]) {
    const CHUNK: u8 = 6;
    let mut rest = bytes.get_mut(8..).unwrap_or_default();
    while let Some((&mut opcode, content)) = rest.split_first_mut()
        && let Some((length, content)) = content.split_first_chunk_mut()
    {
        if opcode == CHUNK
            && let Some(checksum) = content.get_mut(24..28)
        {
            checksum.fill(0);
        }
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        rest = content.get_mut(length..).unwrap_or_default();
    }
}

/// Computes the checksums in the file of a map, if it can be opened and keeps its length.
pub(super) fn map(bytes: &mut [u8]) {
    let folder = super::folder();
    let path = folder.path().join("map.magmap");
    super::put(&path, bytes);
    let corrected = Database::open(&path).map(|database| database.correct_checksums());
    if let Ok(Ok(())) = corrected
        && let Ok(read) = std::fs::read(&path)
        && read.len() == bytes.len()
    {
        bytes.copy_from_slice(&read);
    }
}
