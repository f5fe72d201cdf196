//! `magmap export`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use magmap::config::Program;
use magmap::display::AxesGrid;
use magmap::field::raster::Rasterizer;
use magmap::store::map_file;
use magmap_tools::cli::{Ending, SettingsArguments, Terminal};
use magmap_tools::export::MapArrays;
use magmap_tools::export::costmap_filter::{self, write_costmap_filter};
use magmap_tools::export::csv::write_csv;
use magmap_tools::export::file::create_folder;
use magmap_tools::export::geotiff::write_geotiff;
use magmap_tools::export::map_server::write_map_server;

use crate::replay::default_folder;
use crate::summary::Table;

const EXAMPLES: &str = "\
Examples:
  magmap export house-map --format csv               a replay's map, into house-map-export/
  magmap export ~/.ros/magmap/map.magmap --format geotiff     the map that the node saved, for QGIS
  magmap export house-map --format costmap-filter --out nav   where the map is of little use, for nav2
  magmap export house-map --format csv,npz --set raster.resolution=0.2 --set raster.margin=0

The map is only read. Its settings are used unless --config or --set changes them: raster.resolution, raster.margin and \
raster.unknown_above say which cells there are and which of them are known.";

/// Writes a saved map for other programs.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Export {
    /// The map: the folder of a replay, or a map that the node has saved.
    map: PathBuf,
    /// The format; several with commas.
    #[arg(long, value_enum, value_delimiter = ',', required = true)]
    format: Vec<Format>,
    /// Folder for the files; by default one named after the map, here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace files of these names.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    settings: SettingsArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table of the known cells: map.csv.
    Csv,
    /// Two bands, mean and standard deviation, in a local coordinate system in metres: map.tif.
    Geotiff,
    /// A mask for nav2's costmap filters, where the map is of little use for localization: poor_localization.yaml and .pgm.
    CostmapFilter,
    /// Arrays for numpy: map.npz, as a replay writes it.
    Npz,
    /// Grids for nav2's map_server: mean and standard_deviation as .yaml and .pgm, as a replay writes them.
    MapServer,
}

impl Format {
    /// The names of its files.
    fn files(self) -> Vec<String> {
        let layer = |name: &str| [format!("{name}.yaml"), format!("{name}.pgm")];
        match self {
            Self::Csv => vec!["map.csv".into()],
            Self::Geotiff => vec!["map.tif".into()],
            Self::CostmapFilter => layer(costmap_filter::NAME).into(),
            Self::Npz => vec!["map.npz".into()],
            Self::MapServer => ["mean", "standard_deviation"].map(layer).concat(),
        }
    }
}

impl Export {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        let file = map_file::file_of(&self.map);
        let checkpoint = map_file::read(&file)?;
        let config = self.settings.load_for(Program::Export, checkpoint.settings()?)?;
        let map = checkpoint.field_map(&config)?;
        let map =
            map.with_context(|| format!("{} has no map yet: it was saved before the first batch", file.display()))?;
        let folder = self.out.unwrap_or_else(|| default_folder(&self.map, "export"));
        let files: Vec<PathBuf> =
            self.format.iter().flat_map(|format| format.files()).map(|name| folder.join(name)).collect();
        if let Some(taken) = files.iter().find(|file| file.exists()).filter(|_| !self.force) {
            bail!("{} exists; choose another folder with --out, or --force to replace it", taken.display());
        }

        let bar = terminal.bar("drawing", 1000);
        let mut rasterizer = Rasterizer::new(&config.raster);
        let drawn = |share: f64| bar.set_position((1000.0 * share) as u64);
        let grid = rasterizer.rasterize_watched(&map, &map.extent, drawn)?;
        let axes = AxesGrid::of(&map, grid);
        bar.finish_and_clear();

        create_folder(&folder)?;
        let path = checkpoint.stream.pipeline.path().points();
        let path: Vec<[f64; 2]> = path.iter().map(|point| [point.x, point.y]).collect();
        let prior_standard_deviation = map.prior_standard_deviation();
        for format in self.format {
            match format {
                Format::Csv => write_csv(&folder.join("map.csv"), grid, axes.as_ref()),
                Format::Geotiff => write_geotiff(&folder.join("map.tif"), grid, &checkpoint.frame),
                Format::CostmapFilter => write_costmap_filter(&folder, grid, prior_standard_deviation),
                Format::MapServer => write_map_server(&folder, grid, prior_standard_deviation),
                Format::Npz => MapArrays {
                    grid,
                    inducing_points: &map.inducing_points(),
                    hyperparameters: &map.hyperparameters(),
                    path: &path,
                    axes: axes.as_ref(),
                    share_below: map.share_below(),
                    sensor_bias: map.sensor_bias(),
                }
                .write(&folder.join("map.npz")),
            }?;
        }
        let mut table = Table::default();
        table.rows("written", files.iter().map(|file| file.display()));
        table.print()?;
        Ok(Ending::Done)
    }
}
