//! Drawing to a PNG that looks the same on every machine: antialiased, with a font that is compiled in.

use std::io;
use std::path::Path;
use std::sync::LazyLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use super::Error;
use super::file::write_atomically;
use magmap::files::FileError;

/// Pixels drawn for each pixel of the picture, along either axis; averaging them smooths lines and letters.
const SUPERSAMPLING: u32 = 2;

/// Pictures are drawn with this font, which is compiled in: a container has none.
const FONT: &str = "DejaVu Sans";

/// Colour of text and axes.
pub(super) const INK: RGBColor = RGBColor(38, 38, 38);

/// Colour of subtitles and grid lines.
pub(super) const PALE_INK: RGBColor = RGBColor(110, 110, 110);

/// A part of the sheet.
pub(super) type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// Result of drawing.
pub(super) type Drawn<'a, T = ()> = Result<T, DrawingAreaErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>>;

/// A length in pixels of the picture, as pixels drawn.
pub(super) fn pixels(length: f64) -> i32 {
    (length * f64::from(SUPERSAMPLING)).round() as i32
}

/// Text of a height in pixels of the picture.
pub(super) fn text(height: f64, colour: RGBColor) -> TextStyle<'static> {
    (FONT, height * f64::from(SUPERSAMPLING)).into_font().color(&colour)
}

/// The offset, downwards, that centres the letters of text of a height (in pixels of the picture): plotters mistakes the baseline of
/// a font for its middle.
pub(super) fn text_offset(height: f64) -> i32 {
    pixels(0.2 * height)
}

/// Writes text whose letters are centred at the height of `place` (pixels drawn).
pub(super) fn write_text<'a>(
    area: &Area<'a>,
    content: &str,
    place: (i32, i32),
    (height, colour): (f64, RGBColor),
    anchor: HPos,
    rotation: FontTransform,
) -> Drawn<'a> {
    let offset = text_offset(height);
    let (x, y) = match rotation {
        FontTransform::Rotate270 => (place.0 + offset, place.1),
        FontTransform::Rotate90 => (place.0 - offset, place.1),
        _ => (place.0, place.1 + offset),
    };
    let style = text(height, colour).transform(rotation).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(content, (x, y), style))
}

/// A line of a width in pixels of the picture.
pub(super) fn line(colour: impl Into<RGBAColor>, width: f64) -> ShapeStyle {
    colour.into().stroke_width(pixels(width).max(1) as u32)
}

/// A number as the label of an axis: six decimals at most, or a power of ten.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude < 1e-12 {
        "0".to_owned()
    } else if (1e-4..1e6).contains(&magnitude) {
        format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        let power = format!("{value:.2e}");
        power.parse::<f64>().map_or(power, |rounded| format!("{rounded:e}"))
    }
}

/// The part of `area` that starts at `corner` and has `size`, both in pixels of the picture.
pub(super) fn part<'a>(area: &Area<'a>, corner: (f64, f64), size: (f64, f64)) -> Area<'a> {
    area.clone().shrink((pixels(corner.0), pixels(corner.1)), (pixels(size.0), pixels(size.1)))
}

/// Calls `draw` with a white sheet of `width` by `height` pixels and writes the picture.
pub(super) fn write_png<F>(path: &Path, width: u32, height: u32, draw: F) -> Result<(), Error>
where
    F: for<'a> FnOnce(&Area<'a>) -> Drawn<'a>,
{
    let failed = |reason: &str| FileError::of("draw", path, "")(io::Error::other(reason));
    LazyLock::force(&FONT_REGISTERED).map_err(failed)?;

    let (drawn_width, drawn_height) = (width * SUPERSAMPLING, height * SUPERSAMPLING);
    let mut drawn = vec![u8::MAX; 3 * drawn_width as usize * drawn_height as usize];
    {
        let area = BitMapBackend::with_buffer(&mut drawn, (drawn_width, drawn_height)).into_drawing_area();
        draw(&area).and_then(|()| area.present()).map_err(|error| failed(&error.to_string()))?;
    }
    let picture = averaged(&drawn, width as usize);
    drop(drawn);
    write_atomically(path, |writer| {
        let mut encoder = png::Encoder::new(writer, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut encoder = encoder.write_header()?;
        encoder.write_image_data(&picture)?;
        Ok(encoder.finish()?)
    })
}

/// Registers the font.
static FONT_REGISTERED: LazyLock<Result<(), &str>> = LazyLock::new(|| {
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the font compiled in cannot be read")
});

/// The picture: each of its pixels is the mean of the square of pixels drawn for it.
fn averaged(drawn: &[u8], width: usize) -> Vec<u8> {
    let side = SUPERSAMPLING as usize;
    let row_length = 3 * width * side;
    let mut picture = Vec::with_capacity(drawn.len() / (side * side));
    let mut sums = vec![[0; 3]; width];
    for rows in drawn.chunks_exact(row_length * side) {
        sums.fill([0; 3]);
        for row in rows.chunks_exact(row_length) {
            for (sum, pixels) in sums.iter_mut().zip(row.as_chunks::<3>().0.chunks_exact(side)) {
                for pixel in pixels {
                    (0..3).for_each(|channel| sum[channel] += u32::from(pixel[channel]));
                }
            }
        }
        picture.extend(sums.iter().flatten().map(|sum| (sum / (SUPERSAMPLING * SUPERSAMPLING)) as u8));
    }
    picture
}

/// Width, height and pixels of a PNG.
#[cfg(test)]
pub(crate) fn read_png(path: &Path) -> (usize, usize, Vec<magmap::display::colour::Rgb>) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut bytes).unwrap();
    (frame.width as usize, frame.height as usize, bytes.as_chunks().0.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averaging_keeps_places_and_channels_apart() {
        // Two pixels side by side, drawn as two rows of four.
        let top = [[0, 10, 20], [4, 10, 20], [100, 0, 0], [100, 0, 0]];
        let bottom = [[8, 10, 20], [12, 10, 20], [100, 0, 0], [100, 0, 200]];
        let drawn: Vec<u8> = top.into_iter().chain(bottom).flatten().collect();
        assert_eq!(averaged(&drawn, 2), [6, 10, 20, 100, 0, 50]);
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.1 + 0.2, -0.0, 50.0, -2.5, 1e-9, 2e6, 100_000.0].map(short);
        assert_eq!(labels, ["0.3", "0", "50", "-2.5", "1e-9", "2e6", "100000"]);
    }

    #[test]
    fn the_font_is_there_and_has_the_letters_we_write() {
        assert_eq!(*FONT_REGISTERED, Ok(()));
        let font = (FONT, 100.0).into_font();
        let width = |text: &str| font.box_size(text).unwrap().0;
        assert!(width("µ") > 20 && width("µ") != width("\u{10ffff}"));
    }
}
