//! The map as a GeoTIFF, for geographic information systems.
//!
//! Two bands of 32-bit floats, mean and standard deviation, NaN where the map is unknown. The coordinate system is a local one in
//! metres: a robot's map has no place on the Earth. Keys as of the GeoTIFF standard 1.1 (OGC 19-008r4) and, for the value without
//! data and the names of the bands, of GDAL.

use std::io::{self, Seek, Write};
use std::path::Path;

use tiff::TiffResult;
use tiff::encoder::colortype::Gray32Float;
use tiff::encoder::{Compression, DeflateLevel, TiffEncoder};
use tiff::tags::{ExtraSamples, Tag};

use super::file::write_atomically;
use super::{Error, check_shape};
use magmap::field::grid::StrengthGrid;

/// GDAL's names and units of the bands, as XML.
const GDAL_METADATA: Tag = Tag::Unknown(42112);

/// Writes a file; `frame` is the name of the coordinate system.
///
/// # Errors
/// Arrays that do not fit the grid, a grid without cells, and errors of the operating system.
pub fn write_geotiff(path: &Path, grid: &StrengthGrid, frame: &str) -> Result<(), Error> {
    check_shape(grid)?;
    if grid.geometry.is_empty() {
        return Err(Error::NoCells(path.to_owned()));
    }
    write_atomically(path, |file| encode(file, grid, frame).map_err(io::Error::other))
}

fn encode(file: impl Write + Seek, grid: &StrengthGrid, frame: &str) -> TiffResult<()> {
    let geometry = &grid.geometry;
    let mut encoder = TiffEncoder::new(file)?.with_compression(Compression::Deflate(DeflateLevel::Balanced));
    let mut image = encoder.new_image::<Gray32Float>(geometry.columns.try_into()?, geometry.rows.try_into()?)?;
    image.extra_samples(&[ExtraSamples::Unspecified])?;

    let [left, bottom] = geometry.origin();
    let top = bottom + geometry.rows as f64 * geometry.resolution;
    // The tag is ASCII, and a bar ends the name.
    let citation: String =
        frame.chars().filter(|letter| letter.is_ascii_graphic() && *letter != '|').chain(['|']).collect();
    let tags = image.encoder();
    tags.write_tag(Tag::ModelPixelScaleTag, &[geometry.resolution, geometry.resolution, 0.0][..])?;
    // The upper left corner of the upper left cell.
    tags.write_tag(Tag::ModelTiepointTag, &[0.0, 0.0, 0.0, left, top, 0.0][..])?;
    tags.write_tag(Tag::GeoKeyDirectoryTag, &geo_keys(citation.len().try_into()?)[..])?;
    tags.write_tag(Tag::GeoAsciiParamsTag, citation.as_str())?;
    tags.write_tag(Tag::GdalNodata, "nan")?;
    tags.write_tag(GDAL_METADATA, band_names().as_str())?;

    // The upper row comes first.
    let rows = (0..geometry.rows).rev();
    let cells = rows.flat_map(|row| row * geometry.columns..(row + 1) * geometry.columns);
    let bands: Vec<f32> =
        cells.flat_map(|cell| [grid.mean[cell] as f32, grid.standard_deviation[cell] as f32]).collect();
    image.write_data(&bands)
}

/// Version 1.1.1 and four keys: an own model of space whose pixels are areas, its name, and metres as its unit.
fn geo_keys(citation: u16) -> [u16; 20] {
    let (user_defined, pixel_is_area, metre) = (32767, 1, 9001);
    let keys = [
        [1, 1, 1, 4],
        [1024, 0, 1, user_defined],
        [1025, 0, 1, pixel_is_area],
        [1026, Tag::GeoAsciiParamsTag.to_u16(), citation, 0],
        [3076, 0, 1, metre],
    ];
    std::array::from_fn(|index| keys[index / 4][index % 4])
}

fn band_names() -> String {
    let items = ["mean", "standard deviation"].iter().enumerate().map(|(band, name)| {
        format!(
            "<Item name=\"DESCRIPTION\" sample=\"{band}\" role=\"description\">{name}</Item>\
             <Item name=\"UNITTYPE\" sample=\"{band}\" role=\"unittype\">uT</Item>"
        )
    });
    format!("<GDALMetadata>{}</GDALMetadata>", items.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::BufReader;

    use tiff::ColorType;
    use tiff::decoder::{Decoder, DecodingResult};

    use super::*;
    use crate::export::strength_grid;

    #[test]
    fn a_decoder_finds_both_bands_and_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.tif");
        let mean = vec![40.0, 41.0, 42.0, 50.0, f64::NAN, 52.5];
        let grid = strength_grid([3, 2], mean, vec![1.0, 1.5, 2.0, 2.5, f64::NAN, 3.5]);
        write_geotiff(&path, &grid, "ödom|").unwrap();

        let mut decoder = Decoder::new(BufReader::new(File::open(&path).unwrap())).unwrap();
        assert_eq!(decoder.dimensions().unwrap(), (3, 2));
        assert_eq!(decoder.colortype().unwrap(), ColorType::Multiband { bit_depth: 32, num_samples: 2 });
        let DecodingResult::F32(values) = decoder.read_image().unwrap() else { panic!("expected 32-bit floats") };
        // Upper row first, mean and standard deviation of each cell side by side.
        let expected = [50.0, 2.5, f32::NAN, f32::NAN, 52.5, 3.5, 40.0, 1.0, 41.0, 1.5, 42.0, 2.0];
        assert_eq!(values.len(), expected.len());
        for (found, expected) in values.iter().zip(expected) {
            assert!(*found == expected || (found.is_nan() && expected.is_nan()), "{values:?}");
        }
        assert_eq!(decoder.get_tag_f64_vec(Tag::ModelPixelScaleTag).unwrap(), [0.5, 0.5, 0.0]);
        // The lower left corner is (-1, 2), and two rows of half a metre are above it.
        assert_eq!(decoder.get_tag_f64_vec(Tag::ModelTiepointTag).unwrap(), [0.0, 0.0, 0.0, -1.0, 3.0, 0.0]);
        let keys = decoder.get_tag_u16_vec(Tag::GeoKeyDirectoryTag).unwrap();
        let key = |id: u16| keys.chunks(4).skip(1).find(|key| key[0] == id).map(|key| [key[1], key[2], key[3]]);
        assert_eq!((keys[..4].to_vec(), keys.len()), (vec![1, 1, 1, 4], 20));
        assert_eq!([key(1024), key(1025), key(3076)], [32767, 1, 9001].map(|value| Some([0, 1, value])));
        assert_eq!(key(1026), Some([34737, 4, 0]));
        assert_eq!(decoder.get_tag_ascii_string(Tag::GeoAsciiParamsTag).unwrap(), "dom|");
        assert_eq!(decoder.get_tag_ascii_string(Tag::GdalNodata).unwrap(), "nan");
        let names = decoder.get_tag_ascii_string(GDAL_METADATA).unwrap();
        assert!(names.contains("sample=\"1\" role=\"description\">standard deviation<"), "{names}");
    }

    #[test]
    fn a_map_without_cells_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.tif");
        let result = write_geotiff(&path, &strength_grid([0, 0], vec![], vec![]), "odom");
        assert!(matches!(result, Err(Error::NoCells(_))) && !path.exists());
    }
}
