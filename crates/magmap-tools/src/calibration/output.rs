//! A calibration as files for other programs.

use nalgebra::{Matrix3, Vector3};

use super::{Calibration, Estimate, SpeedBias};
use magmap::config::Sensor;
use magmap::sensing::reading::MICROTESLA_PER_TESLA;

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
                    "# Turned by {yaw:.2} degrees from the recorded mount (standard deviation {sd:.2}). Half a turn more would \
                     look like steel on the other side."
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
        let [x, y, z] = self.hard_iron?.value.map(|value| (value + 0.0) / MICROTESLA_PER_TESLA);
        Some(format!("magnetometer_bias_x: {x:.9}\nmagnetometer_bias_y: {y:.9}\nmagnetometer_bias_z: {z:.9}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::empty;
    use super::super::{HardIron, SpeedBias};
    use super::*;
    use magmap::config::Config;
    use nalgebra::Isometry3;

    /// The text for the mount at (0.1, 0, 0.2), and the settings in it.
    fn written(calibration: &Calibration, sensor: &Sensor) -> (String, Config) {
        let text = calibration.to_toml(sensor).unwrap();
        let config = Config::from_toml(&text, "sensor.toml").unwrap();
        (text, config)
    }

    fn nothing() -> Calibration {
        empty(Isometry3::translation(0.1, 0.0, 0.2))
    }

    fn with_hard_iron() -> Calibration {
        let hard_iron = HardIron { value: [15.0, -0.0, 0.0], sd: [Some(0.1), Some(0.25), None] };
        Calibration { hard_iron: Some(hard_iron), ..nothing() }
    }

    #[test]
    fn a_drive_that_tells_nothing_writes_nothing() {
        let vague = Calibration {
            yaw: Some(Estimate { value: 0.01, sd: 0.02 }),
            delay: Some(Estimate { value: 0.01, sd: 0.02 }),
            speed_bias: Some(SpeedBias { value: [1.0; 3], sd: [1.0; 3], is_significant: false }),
            ..nothing()
        };
        assert_eq!((vague.to_toml(&Sensor::default()), vague.to_bias_yaml()), (None, None));
    }

    #[test]
    fn hard_iron_alone_changes_neither_mount_nor_delay() {
        let (text, config) = written(&with_hard_iron(), &Sensor::default());
        assert!(text.contains("# Standard deviations in microtesla: 0.10, 0.25, unknown, left at zero."), "{text}");
        assert!(text.contains("hard_iron = [15.000, 0.000, 0.000]"), "no zero has a sign: {text}");
        assert_eq!(config.sensor, Sensor { hard_iron: [15.0, 0.0, 0.0], ..Sensor::default() });
        let yaml = with_hard_iron().to_bias_yaml().unwrap();
        assert!(yaml.starts_with("magnetometer_bias_x: 0.000015000\nmagnetometer_bias_y: 0.000000000"), "{yaml}");
    }

    #[test]
    fn what_differs_by_two_deviations_is_replaced_and_the_rest_of_the_settings_is_kept() {
        let given = Sensor {
            hard_iron: [1.0, 2.0, 3.0],
            soft_iron: [1.1, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            delay: 0.05,
            ..Sensor::default()
        };
        let found = Calibration {
            yaw: Some(Estimate { value: 0.2, sd: 0.01 }),
            delay: Some(Estimate { value: 0.08, sd: 0.01 }),
            speed_bias: Some(SpeedBias { value: [3.0, 0.0, -4.0], sd: [0.1; 3], is_significant: true }),
            ..nothing()
        };
        let (text, config) = written(&found, &given);
        let sensor = &config.sensor;
        assert_eq!((sensor.hard_iron, sensor.soft_iron, sensor.delay), (given.hard_iron, given.soft_iron, 0.08));
        assert!(sensor.override_transforms && text.contains("# Turned by 11.46 degrees"), "{text}");
        assert_eq!((sensor.position, sensor.orientation), ([0.1, 0.0, 0.2], [0.0, 0.0, 0.2]));
        assert_eq!(config.vector.speed_bias, 5.0);

        // A mount that the settings gave stays one of the settings.
        let overriding = Sensor { override_transforms: true, delay: 0.0795, ..given };
        let (text, config) =
            written(&Calibration { yaw: None, speed_bias: None, ..found }, &Sensor { delay: 0.03, ..overriding });
        assert!(config.sensor.override_transforms && !text.contains("Turned"), "{text}");
        assert_eq!(config.sensor.position, [0.1, 0.0, 0.2]);
    }
}
