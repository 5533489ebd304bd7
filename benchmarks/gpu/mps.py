from part import Part
PART = Part("mps","mps",1.0,1.0,{},lambda b: None)
