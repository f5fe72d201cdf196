//! A calibration as files for other programs.

use std::fmt::Write;

use nalgebra::Matrix3;

use super::Calibration;
use crate::config::Sensor;

/// Microtesla in one tesla.
const MICROTESLA: f64 = 1e6;

impl Calibration {
    /// The section `[sensor]` for `--config`, with what the drive tells: the hard iron, and the mount where it differs from the recorded one by
    /// two standard deviations. `sensor` has the settings with which the drive was read. None where the drive tells neither.
    pub fn to_toml(&self, sensor: &Sensor) -> Option<String> {
        let is_turned = self.significant_yaw().is_some();
        if self.hard_iron.is_none() && !is_turned {
            return None;
        }
        let mut text = String::from("[sensor]\n");
        let list = |values: &[f64], digits: usize| {
            let values: Vec<String> = values.iter().map(|value| format!("{:.digits$}", value + 0.0)).collect();
            format!("[{}]", values.join(", "))
        };
        if let Some(hard_iron) = self.hard_iron {
            let sd = hard_iron.sd.map(|sd| sd.map_or("unknown, left at zero".to_owned(), |sd| format!("{sd:.2}")));
            let _ = writeln!(text, "# Standard deviations in microtesla: {}.", sd.join(", "));
            let _ = writeln!(text, "hard_iron = {}", list(&hard_iron.value, 3));
        }
        if Matrix3::from_row_slice(&sensor.soft_iron) != Matrix3::identity() {
            let _ = writeln!(text, "soft_iron = {:?}", sensor.soft_iron);
        }
        if is_turned || sensor.override_transforms {
            let mount = self.turned_mount();
            if let Some(yaw) = self.yaw {
                let _ = writeln!(
                    text,
                    "# Turned by {:.2} degrees of yaw from the recorded mount, standard deviation {:.2} degrees.",
                    yaw.value.to_degrees(),
                    yaw.sd.to_degrees()
                );
            }
            let (roll, pitch, yaw) = mount.rotation.euler_angles();
            let _ = writeln!(text, "override_transforms = true");
            let _ = writeln!(text, "position = {}", list(mount.translation.vector.as_slice(), 4));
            let _ = writeln!(text, "orientation = {}", list(&[roll, pitch, yaw], 5));
        }
        if let Some(delay) = self.delay.filter(|delay| delay.value.abs() > 2.0 * delay.sd) {
            let _ = writeln!(
                text,
                "# The readings are stamped {:.3} s later than the poses (standard deviation {:.3} s): correct the stamps in the driver.",
                delay.value, delay.sd
            );
        }
        Some(text)
    }

    /// The file `magnetometer_calib.yaml` of the ROS package magnetometer_pipeline, in tesla; none where the hard iron is not known.
    pub fn to_bias_yaml(&self) -> Option<String> {
        let [x, y, z] = self.hard_iron?.value.map(|value| (value + 0.0) / MICROTESLA);
        Some(format!("magnetometer_bias_x: {x:.9}\nmagnetometer_bias_y: {y:.9}\nmagnetometer_bias_z: {z:.9}\n"))
    }
}
