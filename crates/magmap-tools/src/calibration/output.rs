//! A calibration as files for other programs.

use nalgebra::{Matrix3, Vector3};

use super::{Calibration, Estimate, SpeedBias};
use magmap::config::Sensor;

/// Microtesla in one tesla.
const MICROTESLA: f64 = 1e6;

impl Calibration {
    /// The sections `[sensor]` and, where a bias grows with the speed, `[vector]`, for `--config`: what the drive
    /// tells, and the rest of `sensor`, the settings with which the drive was read. Mount and delay are replaced where
    /// they differ by two standard deviations. None where nothing is to be replaced.
    pub fn to_toml(&self, sensor: &Sensor) -> Option<String> {
        let turned = self.yaw.filter(|_| self.significant_yaw().is_some());
        let late = self.delay.filter(|delay| (delay.value - sensor.delay).abs() > 2.0 * delay.sd);
        let speed_bias = self.speed_bias.filter(|bias| bias.is_significant);
        if self.hard_iron.is_none() && turned.is_none() && late.is_none() && speed_bias.is_none() {
            return None;
        }
        let mut lines = vec!["[sensor]".to_owned()];
        let list = |values: &[f64], digits: usize| {
            let values: Vec<String> = values.iter().map(|value| format!("{:.digits$}", value + 0.0)).collect();
            format!("[{}]", values.join(", "))
        };
        if let Some(hard_iron) = self.hard_iron {
            let sd = hard_iron.sd.map(|sd| sd.map_or("unknown, left at zero".to_owned(), |sd| format!("{sd:.2}")));
            lines.push(format!("# Standard deviations in microtesla: {}.", sd.join(", ")));
        }
        let hard_iron = self.hard_iron.map_or(sensor.hard_iron, |hard_iron| hard_iron.value);
        lines.push(format!("hard_iron = {}", list(&hard_iron, 3)));
        if Matrix3::from_row_slice(&sensor.soft_iron) != Matrix3::identity() {
            lines.push(format!("soft_iron = {:?}", sensor.soft_iron));
        }
        if turned.is_some() || sensor.override_transforms {
            if let Some(Estimate { value, sd }) = turned {
                let (yaw, sd) = (value.to_degrees(), sd.to_degrees());
                lines.push(format!(
                    "# Turned by {yaw:.2} degrees from the recorded mount (standard deviation {sd:.2})."
                ));
            }
            let mount = self.turned_mount();
            let (roll, pitch, yaw) = mount.rotation.euler_angles();
            lines.push("override_transforms = true".to_owned());
            lines.push(format!("position = {}", list(mount.translation.vector.as_slice(), 4)));
            lines.push(format!("orientation = {}", list(&[roll, pitch, yaw], 5)));
        }
        if let Some(Estimate { sd, .. }) = late {
            lines.push(format!("# Standard deviation in seconds: {sd:.3}."));
        }
        let delay = late.map_or(sensor.delay, |late| late.value);
        if delay != 0.0 {
            lines.push(format!("delay = {delay:.4}"));
        }
        if let Some(SpeedBias { value, .. }) = speed_bias {
            let size = Vector3::from(value).norm();
            lines.extend(["".to_owned(), "[vector]".to_owned(), format!("speed_bias = {size:.1}")]);
        }
        Some(lines.join("\n") + "\n")
    }

    /// The file `magnetometer_calib.yaml` of the ROS package magnetometer_pipeline, in tesla; none where the hard iron
    /// is not known.
    pub fn to_bias_yaml(&self) -> Option<String> {
        let [x, y, z] = self.hard_iron?.value.map(|value| (value + 0.0) / MICROTESLA);
        Some(format!("magnetometer_bias_x: {x:.9}\nmagnetometer_bias_y: {y:.9}\nmagnetometer_bias_z: {z:.9}\n"))
    }
}
