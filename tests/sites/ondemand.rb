# What Open OnDemand makes of an app: its files are filled in by ERB as its dashboard does
# (BatchConnect::App and Session), with a form's values. Reads JSON: `app`, `form` (values by
# name), `connection` (what view.html.erb knows), `out`. Prints JSON: `form`, `submit`, `view`.
require "erb"
require "fileutils"
require "json"
require "ostruct"
require "yaml"

asked = JSON.parse($stdin.read)
app = asked.fetch("app")
Filled = Struct.new(:session, :context) { def get_binding = binding }

def filled(path, where)
  erb = ERB.new(File.read(path), trim_mode: "-")
  erb.filename = path
  erb.result(where)
end

def yaml(path, where)
  YAML.safe_load(filled(path, where))
end

form = yaml("#{app}/form.yml.erb", TOPLEVEL_BINDING.dup)
values = form.fetch("form").to_h do |name|
  said = form.fetch("attributes")[name]
  # A plain value is fixed: what a browser sends for it counts for nothing.
  fixed = !said.nil? && !said.is_a?(Hash)
  default = fixed ? said : (said || {})["value"]
  may = !fixed || asked["administrator"]
  [name, may && asked.fetch("form").key?(name) ? asked.fetch("form")[name] : default]
end
context = OpenStruct.new(values)
submit = yaml("#{app}/submit.yml.erb", context.instance_eval { binding })

out = asked.fetch("out")
FileUtils.cp_r("#{app}/template/.", out)
Dir.glob("#{out}/**/*.erb").each do |path|
  made = path.delete_suffix(".erb")
  File.write(made, filled(path, Filled.new(nil, context).get_binding))
  File.chmod(File.stat(path).mode, made)
  File.delete(path)
end

view = filled("#{app}/view.html.erb", OpenStruct.new(asked["connection"] || {}).instance_eval { binding })
puts JSON.generate(form: form, submit: submit, view: view)
